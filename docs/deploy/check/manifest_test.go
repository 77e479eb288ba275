// Package check_test decodes docs/deploy/kubernetes.yaml into the types of Kubernetes' API. It
// is a module of its own: nobody else needs them.
package check_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"
)

// manifest is what the file has, one of each.
type manifest struct {
	config  core.ConfigMap
	service core.Service
	set     apps.StatefulSet
}

func load(t *testing.T) (m manifest) {
	t.Helper()
	b, err := os.ReadFile("../kubernetes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	into := map[string]any{"v1/ConfigMap": &m.config, "v1/Service": &m.service, "apps/v1/StatefulSet": &m.set}
	for i, doc := range bytes.Split(b, []byte("\n---\n")) {
		var kind meta.TypeMeta
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			t.Fatalf("document %d: %v", i, err)
		}
		name := kind.APIVersion + "/" + kind.Kind
		if into[name] == nil {
			t.Fatalf("document %d is a %s, or a second one", i, name)
		}
		if err := yaml.UnmarshalStrict(doc, into[name]); err != nil {
			t.Errorf("document %d, %s: %v", i, name, err)
		}
		delete(into, name)
	}
	for name := range into {
		t.Errorf("no %s", name)
	}
	return m
}

func TestPod(t *testing.T) {
	m := load(t)
	pod := m.set.Spec.Template.Spec
	// The default drain, 30 s for what is still to be settled, and a little to close.
	if grace := pod.TerminationGracePeriodSeconds; grace == nil || time.Duration(*grace)*time.Second < (25+30+5)*time.Second {
		t.Errorf("the pod is killed before the host has settled: %v", grace)
	}
	if s := pod.SecurityContext; s == nil || s.RunAsNonRoot == nil || !*s.RunAsNonRoot || s.RunAsUser == nil || *s.RunAsUser == 0 {
		t.Error("the pod may run as root")
	}
	if len(pod.Containers) != 1 {
		t.Fatalf("%d containers", len(pod.Containers))
	}
	c := pod.Containers[0]
	if s := c.SecurityContext; s == nil || s.ReadOnlyRootFilesystem == nil || !*s.ReadOnlyRootFilesystem ||
		s.AllowPrivilegeEscalation == nil || *s.AllowPrivilegeEscalation || !slices.Contains(s.Capabilities.Drop, "ALL") {
		t.Errorf("the container may more than it needs: %+v", s)
	}
	for name, p := range map[string]*core.Probe{"/healthz": c.LivenessProbe, "/readyz": c.ReadinessProbe} {
		if p == nil || p.HTTPGet == nil || p.HTTPGet.Path != name || p.HTTPGet.Port.String() != c.Ports[0].Name {
			t.Errorf("no probe asks %s", name)
		}
	}
	if c.StartupProbe == nil {
		t.Error("a slow start is taken for a dead host")
	}
}

// What is mounted is there, what is selected matches, and only the data are written to.
func TestReferences(t *testing.T) {
	m := load(t)
	labels := m.set.Spec.Template.Labels
	for key, v := range m.service.Spec.Selector {
		if labels[key] != v || m.set.Spec.Selector.MatchLabels[key] != v {
			t.Errorf("the label %s=%s is not everywhere", key, v)
		}
	}
	if m.service.Name != m.set.Spec.ServiceName {
		t.Errorf("the set's service is %s, there is %s", m.set.Spec.ServiceName, m.service.Name)
	}
	volumes := map[string]bool{}
	for _, v := range m.set.Spec.Template.Spec.Volumes {
		volumes[v.Name] = true
		if v.ConfigMap != nil && v.ConfigMap.Name != m.config.Name {
			t.Errorf("volume %s is of config map %s, there is %s", v.Name, v.ConfigMap.Name, m.config.Name)
		}
	}
	for _, c := range m.set.Spec.VolumeClaimTemplates {
		volumes[c.Name] = true
	}
	for _, mount := range m.set.Spec.Template.Spec.Containers[0].VolumeMounts {
		if !volumes[mount.Name] {
			t.Errorf("no volume %s", mount.Name)
		}
		if !mount.ReadOnly && mount.MountPath != "/data" {
			t.Errorf("%s can be written to", mount.MountPath)
		}
	}
}

// The host itself reads the configuration of the config map.
func TestConfiguration(t *testing.T) {
	m := load(t)
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "plugins"), 0o700); err != nil {
		t.Fatal(err)
	}
	text := m.config.Data["config.toml"]
	for _, path := range []string{"/data", "/plugins"} {
		if !strings.Contains(text, fmt.Sprintf("%q", path)) {
			t.Errorf("the configuration does not use %s", path)
		}
	}
	text = strings.NewReplacer(`"/data`, `"`+dir+`/data`, `"/plugins`, `"`+dir+`/plugins`).Replace(text)
	file := filepath.Join(dir, "config.toml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	c := exec.CommandContext(t.Context(), "go", "run", "./cmd/guesthand", "check", "-c", file)
	c.Dir, c.Env = "../../..", append(os.Environ(), "GUESTHAND_TOKEN=sesame", "CGO_ENABLED=0")
	if out, err := c.CombinedOutput(); err != nil {
		t.Errorf("guesthand check: %v\n%s", err, out)
	}
}
