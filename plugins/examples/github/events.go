//go:build wasip1

package main

import (
	"fmt"
	"strings"
)

// event is a payload. Fields are looked up by path, since payloads of the same event differ
// in what they carry and in what is null.
type event map[string]any

// at is the value at a path, nil if any step of it is missing.
func (e event) at(path ...string) any {
	var v any = map[string]any(e)
	for _, key := range path {
		m, ok := v.(map[string]any)
		if !ok {
			return nil
		}
		v = m[key]
	}
	return v
}

// text is the value at a path as text: numbers without a fraction, "" for null or absent.
func (e event) text(path ...string) string {
	switch v := e.at(path...).(type) {
	case string:
		return v
	case float64:
		return fmt.Sprintf("%.0f", v)
	case bool:
		return fmt.Sprint(v)
	}
	return ""
}

// count is the length of the list at a path.
func (e event) count(path ...string) int {
	list, _ := e.at(path...).([]any)
	return len(list)
}

// line is the first line of the text at a path, shortened.
func (e event) line(path ...string) string {
	const limit = 80
	first, _, _ := strings.Cut(strings.TrimSpace(e.text(path...)), "\n")
	first = strings.TrimSpace(first)
	if r := []rune(first); len(r) > limit {
		return string(r[:limit-1]) + "…"
	}
	return first
}

// teller says what a person wants to know of an event, and where to look at it.
type teller func(event) (text, url string)

var tellers = map[string]teller{
	"check_run":                   tellCheck("check_run"),
	"check_suite":                 tellCheck("check_suite"),
	"create":                      tellRef("created"),
	"delete":                      tellRef("deleted"),
	"deployment":                  tellDeployment,
	"deployment_status":           tellDeployment,
	"discussion":                  tellNumbered("discussion"),
	"fork":                        tellFork,
	"issue_comment":               tellComment("issue"),
	"issues":                      tellNumbered("issue"),
	"ping":                        tellPing,
	"pull_request":                tellPullRequest,
	"pull_request_review":         tellReview,
	"pull_request_review_comment": tellComment("pull_request"),
	"push":                        tellPush,
	"release":                     tellRelease,
	"star":                        tellStar,
	"status":                      tellStatus,
	"watch":                       tellStar,
	"workflow_job":                tellCheck("workflow_job"),
	"workflow_run":                tellCheck("workflow_run"),
}

func tellPush(e event) (string, string) {
	ref := shortRef(e.text("ref"))
	switch {
	case e.text("deleted") == "true":
		return ref + " deleted", e.text("compare")
	case e.count("commits") == 0:
		return ref + " moved, no commits", e.text("compare")
	}
	forced := ""
	if e.text("forced") == "true" {
		forced = ", forced"
	}
	return fmt.Sprintf("%s: commits: %d%s, the last: %s", ref, e.count("commits"), forced, e.line("head_commit", "message")),
		e.text("compare")
}

func tellPullRequest(e event) (string, string) {
	text, url := tellNumbered("pull_request")(e)
	if e.text("action") == "closed" && e.text("pull_request", "merged") == "true" {
		text += ", merged into " + e.text("pull_request", "base", "ref")
	}
	return text, url
}

func tellReview(e event) (string, string) {
	text, _ := tellNumbered("pull_request")(e)
	return text + ": " + strings.ReplaceAll(e.text("review", "state"), "_", " "), e.text("review", "html_url")
}

// tellNumbered tells of what has a number and a title: an issue, a pull request.
func tellNumbered(key string) teller {
	return func(e event) (string, string) {
		return fmt.Sprintf("#%s %s", e.text(key, "number"), e.line(key, "title")), e.text(key, "html_url")
	}
}

func tellComment(on string) teller {
	return func(e event) (string, string) {
		text, _ := tellNumbered(on)(e)
		return text + ": " + e.line("comment", "body"), e.text("comment", "html_url")
	}
}

// tellCheck tells of what runs and comes to a conclusion.
func tellCheck(key string) teller {
	return func(e event) (string, string) {
		name := e.text(key, "name")
		if name == "" {
			name = e.text(key, "app", "name")
		}
		state := e.text(key, "conclusion")
		if state == "" {
			state = e.text(key, "status")
		}
		return fmt.Sprintf("%s: %s", name, strings.ReplaceAll(state, "_", " ")), e.text(key, "html_url")
	}
}

func tellRef(done string) teller {
	return func(e event) (string, string) {
		return fmt.Sprintf("%s %s %s", e.text("ref_type"), e.text("ref"), done), ""
	}
}

func tellDeployment(e event) (string, string) {
	text := fmt.Sprintf("%s to %s", e.text("deployment", "ref"), e.text("deployment", "environment"))
	if state := e.text("deployment_status", "state"); state != "" {
		text += ": " + state
	}
	return text, e.text("deployment_status", "target_url")
}

func tellFork(e event) (string, string) {
	return "forked to " + e.text("forkee", "full_name"), e.text("forkee", "html_url")
}

func tellPing(e event) (string, string) { return e.text("zen"), "" }

func tellRelease(e event) (string, string) {
	name := e.line("release", "name")
	if tag := e.text("release", "tag_name"); name != tag {
		name = strings.TrimSpace(tag + " " + name)
	}
	return name, e.text("release", "html_url")
}

func tellStar(e event) (string, string) {
	return "stars: " + e.text("repository", "stargazers_count"), ""
}

func tellStatus(e event) (string, string) {
	text := e.text("context") + ": " + e.text("state")
	if more := e.line("description"); more != "" {
		text += ", " + more
	}
	return text, e.text("target_url")
}

// tellOther tells of any event: the first title, name or text among the usual places.
func tellOther(e event) (string, string) {
	for _, key := range []string{"alert", "comment", "hook", "installation", "label", "member", "milestone", "package",
		"project", "release", "rule", "security_advisory", "team", "workflow_run"} {
		for _, field := range []string{"title", "name", "summary", "body", "login", "state"} {
			if text := e.line(key, field); text != "" {
				return key + ": " + text, e.text(key, "html_url")
			}
		}
	}
	return strings.ReplaceAll(e.text("action"), "_", " "), ""
}

func shortRef(ref string) string {
	return strings.TrimPrefix(strings.TrimPrefix(ref, "refs/heads/"), "refs/tags/")
}
