package docs_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

const deploy = "docs/deploy/"

// TestUnit lets systemd judge the unit. The binary's path is made one that exists here.
func TestUnit(t *testing.T) {
	tool, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("no systemd-analyze in PATH: the unit is not verified")
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	unit := read(t, deploy+"guesthand.service")
	if !strings.Contains(unit, "ExecStart=/usr/local/bin/guesthand run\n") {
		t.Error("the unit does not start /usr/local/bin/guesthand run")
	}
	file := filepath.Join(t.TempDir(), "guesthand.service")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(unit, "/usr/local/bin/guesthand", self)), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), tool, "verify", "--man=no", file).CombinedOutput()
	if err != nil || len(out) != 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), tool, "security", "--offline=true", "--threshold=20", file).CombinedOutput(); err != nil {
		t.Errorf("the unit is exposed to more than 2.0 of 10: %v\n%s", err, out)
	}
}

// TestAlerts lets Prometheus judge the rules, and runs their own tests.
func TestAlerts(t *testing.T) {
	tool := os.Getenv("GUESTHAND_TEST_PROMTOOL")
	if tool == "" {
		t.Skip("GUESTHAND_TEST_PROMTOOL is not set: the alerts are not checked")
	}
	for _, args := range [][]string{{"check", "rules", "alerts.yaml"}, {"test", "rules", "alerts_test.yaml"}} {
		c := exec.CommandContext(t.Context(), tool, args...)
		c.Dir = filepath.Join(root, deploy)
		if out, err := c.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

var (
	metricUsed = regexp.MustCompile(`\bguesthand_([a-z_]+)`)
	alertName  = regexp.MustCompile(`(?m)^ *- alert: (\S+)$`)
)

// TestAlertsNameWhatThereIs wants every metric of the rules from the host, and every rule
// explained for the person it wakes.
func TestAlertsNameWhatThereIs(t *testing.T) {
	rules := read(t, deploy+"alerts.yaml")
	code := read(t, "host/metrics/metrics.go") + read(t, "host/metrics/state.go")
	for _, m := range metricUsed.FindAllStringSubmatch(rules, -1) {
		if !strings.Contains(code, `"`+m[1]+`"`) {
			t.Errorf("alerts.yaml asks for %s, which the host does not have", m[0])
		}
	}
	guide := read(t, "docs/operations.md")
	alerts := alertName.FindAllStringSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("no alert found")
	}
	for _, m := range alerts {
		if !strings.Contains(guide, "| `"+m[1]+"` |") {
			t.Errorf("docs/operations.md does not say what to do about %s", m[1])
		}
	}
}

var goDirective = regexp.MustCompile(`(?m)^go (\d+\.\d+)`)

// TestDockerfile checks what can be without an engine: the stages' paths and the compiler.
func TestDockerfile(t *testing.T) {
	file := read(t, deploy+"Dockerfile")
	want := "FROM golang:" + goDirective.FindStringSubmatch(read(t, "go.mod"))[1] + " AS build\n"
	if !strings.Contains(file, want) {
		t.Errorf("the Dockerfile does not build with go.mod's Go: %s", want)
	}
	for _, line := range []string{"\nFROM scratch\n", "CGO_ENABLED=0 go build", "\nUSER 65532:65532\n", "-X main.version=", "ca-certificates.crt"} {
		if !strings.Contains(file, line) {
			t.Errorf("the Dockerfile lacks %q", line)
		}
	}
	for _, m := range regexp.MustCompile(`COPY --from=build (?:--chown=\S+ )?(/out/\S+)`).FindAllStringSubmatch(file, -1) {
		if strings.Count(file, m[1]) < 2 {
			t.Errorf("the Dockerfile copies %s, which its first stage does not make", m[1])
		}
	}
}
