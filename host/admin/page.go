package admin

import (
	"bytes"
	"crypto/sha256"
	_ "embed" // the page's parts
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
)

//go:embed page/index.html
var pageHTML string

//go:embed page/style.css
var pageStyle string

//go:embed page/page.js
var pageScript string

// page is the one document that people look at, and the policy that lets a browser run
// nothing but it: whatever text a guest or producer gets in front of a person, it stays text.
var page, pagePolicy = buildPage()

func buildPage() (document []byte, policy string) {
	var b bytes.Buffer
	// The parts are our own: nothing in them is to be escaped.
	err := template.Must(template.New("page").Parse(pageHTML)).Execute(&b, map[string]any{
		"Style": template.CSS(pageStyle), "Script": template.JS(pageScript)})
	if err != nil {
		panic(err) // it is the same in every process, so a test sees it first
	}
	return b.Bytes(), fmt.Sprintf("default-src 'none'; script-src %s; style-src %s; connect-src 'self'; img-src data:; "+
		"base-uri 'none'; form-action 'none'; frame-ancestors 'none'", hashOf(pageScript), hashOf(pageStyle))
}

func hashOf(text string) string {
	sum := sha256.Sum256([]byte(text))
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

func (s *Server) page(w http.ResponseWriter, _ *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", pagePolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	if _, err := w.Write(page); err != nil {
		s.log.Debug("page", "error", err) // the reader has gone
	}
}
