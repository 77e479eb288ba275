package main

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	"github.com/spf13/cobra"

	"github.com/guesthand/guesthand/abi/guest"
	"github.com/guesthand/guesthand/host/config"
	"github.com/guesthand/guesthand/host/engine"
)

//go:embed templates
var templates embed.FS

func newNew(g *globals) *cobra.Command {
	var lang, dialect string
	c := &cobra.Command{
		Use: "new NAME --lang LANGUAGE", Short: "Make a handler's project: a source, its SDK, how to build it, messages to try", Args: cobra.ExactArgs(1),
		Long: "Make the directory NAME with a small handler that builds and runs at once. The module takes\n" +
			"the directory's name, and so does the job.",
		Example: `  guesthand new resize --lang go
  guesthand new resize --lang rust --dialect command`,
		RunE: func(c *cobra.Command, args []string) error {
			p, err := newProject(args[0], lang, dialect)
			if err != nil {
				return err
			}
			if err := p.make(); err != nil {
				return err
			}
			return g.printProject(c.OutOrStdout(), p)
		},
	}
	c.Flags().StringVar(&lang, "lang", "", "the `language`: "+strings.Join(languageNames(), ", "))
	c.Flags().StringVar(&dialect, "dialect", string(engine.Native), "the `form` of the module: native, or command for an ordinary program")
	return c
}

// project is a handler's directory to be made.
type project struct {
	name    string
	lang    language
	dialect engine.Dialect
	files   map[string][]byte // by slash path
}

func newProject(name, lang, dialect string) (*project, error) {
	if !config.ValidJob(name) {
		return nil, fail(exitUsage, "the module's name is the job's: a-z, 0-9, dot, _ and -, and it starts with a letter or digit",
			fmt.Errorf("%q is no job's name", name))
	}
	i := slices.IndexFunc(languages, func(l language) bool { return l.name == lang })
	if i < 0 {
		return nil, unknownLanguage(lang)
	}
	p := &project{name: name, lang: languages[i], dialect: engine.Dialect(dialect)}
	if !slices.Contains([]engine.Dialect{engine.Native, engine.Command}, p.dialect) {
		return nil, fail(exitUsage, "native or command", fmt.Errorf("unknown dialect %q", dialect))
	}
	if !slices.Contains(p.lang.dialects(), p.dialect) {
		return nil, fail(exitUsage, "leave --dialect out", fmt.Errorf("%s has no %s form here", p.lang.title, dialect))
	}
	return p, p.fill()
}

func unknownLanguage(lang string) error {
	known := "one of " + strings.Join(languageNames(), ", ") +
		"; docs/handlers.md says how any other language with a WASI compiler makes a command"
	switch near := config.Nearest(lang, languageNames()); {
	case lang == "":
		return fail(exitUsage, known, errors.New("--lang is missing"))
	case near != "":
		return fail(exitUsage, "did you mean "+near+"?", fmt.Errorf("unknown language %q", lang))
	}
	return fail(exitUsage, known, fmt.Errorf("unknown language %q", lang))
}

// fill writes the project's files in memory.
func (p *project) fill() error {
	p.files = map[string][]byte{
		"payloads/hello.txt": []byte("Ada"),
		"payloads/busy.txt":  []byte("busy"),
		"payloads/empty.txt": {},
		".gitignore":         []byte(p.module() + "\n" + p.lang.ignore),
	}
	if p.lang.sdk != "" {
		sdk, err := guest.Files.ReadFile(p.lang.embedded)
		if err != nil {
			return err
		}
		p.files[p.lang.sdk] = sdk
	}
	if err := p.render("templates/README.md.tmpl"); err != nil {
		return err
	}
	sources, err := fs.Glob(templates, path.Join("templates", p.lang.name, "*.tmpl"))
	if err != nil {
		return err
	}
	for _, source := range sources {
		if err := p.render(source); err != nil {
			return err
		}
	}
	return nil
}

func (p *project) render(source string) error {
	text, err := templates.ReadFile(source)
	if err != nil {
		return err
	}
	t, err := template.New(source).Delims("[[", "]]").Parse(string(text))
	if err != nil {
		return err
	}
	needs := p.lang.needs
	command := p.dialect == engine.Command
	if command && p.lang.commandNeeds != "" {
		needs = p.lang.commandNeeds
	}
	var b bytes.Buffer
	err = t.Execute(&b, map[string]any{"Name": p.name, "Command": command, "Title": p.lang.title, "Needs": needs,
		"Source": p.lang.source, "SDK": p.lang.sdk, "SDKIs": p.lang.sdkIs})
	p.files[strings.TrimSuffix(path.Base(source), ".tmpl")] = b.Bytes()
	return err
}

func (p *project) module() string { return p.name + ".wasm" }

// make writes the directory, which must not be there: nobody's files are written over.
func (p *project) make() error {
	if err := os.Mkdir(p.name, 0o777); errors.Is(err, fs.ErrExist) {
		return fail(exitUsage, "choose another name, or another directory to be in", fmt.Errorf("%s is there already", p.name))
	} else if err != nil {
		return err
	}
	for _, file := range p.list() {
		name := filepath.Join(p.name, filepath.FromSlash(file))
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return err
		}
		mode := fs.FileMode(0o666)
		if path.Ext(file) == ".sh" {
			mode = 0o777
		}
		if err := os.WriteFile(name, p.files[file], mode); err != nil {
			return err
		}
	}
	return nil
}

func (p *project) list() []string { return slices.Sorted(maps.Keys(p.files)) }

func (p *project) next() []string {
	return []string{
		"cd " + p.name,
		"./build.sh",
		"guesthand invoke " + p.module() + " --payload @payloads/hello.txt",
		"cp " + p.module() + " ../plugins/",
	}
}

// madeProject is what new --json prints.
type madeProject struct {
	Name    string   `json:"name"`
	Lang    string   `json:"lang"`
	Dialect string   `json:"dialect"`
	Module  string   `json:"module"`
	Files   []string `json:"files"`
	Needs   string   `json:"needs"`
	Next    []string `json:"next"`
}

func (g *globals) printProject(w io.Writer, p *project) error {
	if g.json {
		return jsonLine(w, madeProject{p.name, p.lang.name, string(p.dialect), p.module(), p.list(), p.lang.needs, p.next()})
	}
	fmt.Fprintf(w, "made %s: %s\n\nnext, with %s:\n", p.name, strings.Join(p.list(), ", "), p.lang.needs)
	for _, line := range p.next() {
		fmt.Fprintf(w, "  %s\n", line)
	}
	return nil
}
