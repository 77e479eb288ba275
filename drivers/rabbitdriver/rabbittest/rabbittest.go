// Package rabbittest runs RabbitMQ nodes as processes of their own for tests, so that they can
// kill them. Each has free loopback ports, its own data, and an Erlang port mapper for itself.
package rabbittest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

// Binary is the environment variable that names the rabbitmq-server script. `make test` sets
// it; without it the one in PATH is tried.
const Binary = "GUESTHAND_TEST_RABBITMQ"

// upWait bounds a node's start: 9 s on an idle machine.
const upWait = 3 * time.Minute

// Node is a RabbitMQ node on loopback ports.
type Node struct {
	// URL is where it listens for AMQP; it stays the same over a restart.
	URL string

	binary string
	dir    string
	name   string
	port   int
	epmd   int
	env    []string

	mu    sync.Mutex
	cmd   *exec.Cmd
	ended chan struct{} // closed when cmd has ended
	log   *bytes.Buffer
}

// Options change a node.
type Options struct {
	// Config is more lines for rabbitmq.conf.
	Config string
	// Erlang is more arguments for the Erlang machine, as "-rabbit channel_tick_interval 500".
	Erlang string
}

// Find returns the rabbitmq-server script to start, or why there is none.
func Find() (string, error) {
	if p := os.Getenv(Binary); p != "" {
		if _, err := os.Stat(p); err != nil {
			return "", fmt.Errorf("$%s: %w", Binary, err)
		}
		return p, nil
	}
	p, err := exec.LookPath("rabbitmq-server")
	if err != nil {
		return "", fmt.Errorf("no rabbitmq-server in $%s or PATH; `make test` unpacks Debian's", Binary)
	}
	return p, nil
}

// Start runs a node until the test ends, or skips the test where there is no RabbitMQ.
func Start(t testing.TB, o Options) *Node {
	t.Helper()
	if _, err := Find(); err != nil {
		t.Skip(err)
	}
	n, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Remove(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// New runs a node until Remove, for one that several tests share.
func New(o Options) (*Node, error) {
	binary, err := Find()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "rabbittest")
	if err != nil {
		return nil, err
	}
	ports, err := freePorts(3)
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	n := &Node{binary: binary, dir: dir, port: ports[0], epmd: ports[1], name: fmt.Sprintf("guesthand%d@localhost", ports[0])}
	n.URL = fmt.Sprintf("amqp://guest:guest@127.0.0.1:%d/", n.port)
	if err = n.configure(o, ports[2]); err == nil {
		err = n.up()
	}
	if err != nil {
		return nil, errors.Join(err, n.Remove())
	}
	return n, nil
}

func (n *Node) configure(o Options, distribution int) error {
	conf := fmt.Sprintf("listeners.tcp.1 = 127.0.0.1:%d\nlog.console = true\nlog.console.level = warning\nlog.file = false\n%s\n", n.port, o.Config)
	for name, text := range map[string]string{"rabbitmq.conf": conf, "enabled_plugins": "[].\n", "env.conf": "", "erlang.cookie": ""} {
		if err := os.WriteFile(filepath.Join(n.dir, name), []byte(text), 0o600); err != nil {
			return err
		}
	}
	// The machine's own idle threads spin for work, which starves tests on two cores.
	erlang := strings.TrimSpace("+sbwt none +sbwtdcpu none +sbwtdio none +S 2:2 -kernel inet_dist_use_interface {127,0,0,1} " + o.Erlang)
	n.env = append(os.Environ(),
		"HOME="+n.dir, // of the Erlang cookie
		"RABBITMQ_NODENAME="+n.name,
		"RABBITMQ_MNESIA_BASE="+filepath.Join(n.dir, "data"),
		"RABBITMQ_LOG_BASE="+filepath.Join(n.dir, "log"),
		"RABBITMQ_CONFIG_FILE="+filepath.Join(n.dir, "rabbitmq.conf"),
		"RABBITMQ_ENABLED_PLUGINS_FILE="+filepath.Join(n.dir, "enabled_plugins"),
		"RABBITMQ_CONF_ENV_FILE="+filepath.Join(n.dir, "env.conf"),
		fmt.Sprintf("RABBITMQ_DIST_PORT=%d", distribution),
		"RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS="+erlang,
		fmt.Sprintf("ERL_EPMD_PORT=%d", n.epmd),
		"ERL_EPMD_ADDRESS=127.0.0.1",
	)
	return nil
}

// Kill ends the node without a warning.
func (n *Node) Kill() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.end(killNow)
}

// Stop ends the node orderly.
func (n *Node) Stop() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.end(killOrderly)
}

// Up starts a node that was ended, on its data.
func (n *Node) Up() error { return n.up() }

// Restart stops the node orderly and starts it again.
func (n *Node) Restart() error { return errors.Join(n.Stop(), n.up()) }

// Remove ends the node and its port mapper, and deletes its data.
func (n *Node) Remove() error {
	err := n.Kill()
	endEpmd(n.epmd)
	return errors.Join(err, os.RemoveAll(n.dir))
}

// Ctl runs rabbitmqctl on the node.
func (n *Node) Ctl(ctx context.Context, args ...string) error {
	script := filepath.Join(filepath.Dir(n.binary), "rabbitmqctl")
	cmd := exec.CommandContext(ctx, script, append([]string{"-n", n.name}, args...)...)
	cmd.Env = n.env
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("rabbitmqctl %s: %w: %s", strings.Join(args, " "), err, out)
	}
	return nil
}

func (n *Node) end(kill func(*exec.Cmd) error) error {
	if n.cmd == nil {
		return nil
	}
	err := kill(n.cmd)
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-n.ended
	n.cmd = nil
	return err
}

func (n *Node) up() error {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.log = &bytes.Buffer{}
	cmd := exec.Command(n.binary)
	cmd.Env, cmd.Dir = n.env, n.dir
	cmd.Stdout, cmd.Stderr = n.log, n.log
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start rabbitmq-server: %w", err)
	}
	n.cmd, n.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) {
		defer close(ended)
		_ = cmd.Wait() // it ends by a signal, which is no failure here
	}(n.ended)
	ctx, cancel := context.WithTimeout(context.Background(), upWait)
	defer cancel()
	for !answers(n.URL) {
		select {
		case <-n.ended:
			n.cmd = nil
			return fmt.Errorf("rabbitmq-server ended at its start: %s", n.log)
		case <-ctx.Done():
			_ = n.end(killNow)
			return fmt.Errorf("rabbitmq-server does not answer after %s: %s", upWait, n.log)
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// answers reports whether the node opens connections.
func answers(url string) bool {
	c, err := amqp.DialConfig(url, amqp.Config{Dial: amqp.DefaultDial(5 * time.Second)})
	if err != nil {
		return false
	}
	_ = c.Close() // it was there
	return true
}

// endEpmd asks the port mapper that the node started to end: it is a daemon and no child of ours.
func endEpmd(port int) {
	c, err := net.DialTimeout("tcp", fmt.Sprintf("127.0.0.1:%d", port), time.Second)
	if err != nil {
		return // there is none
	}
	defer func() { _ = c.Close() }()
	if c.SetDeadline(time.Now().Add(5*time.Second)) != nil {
		return
	}
	if _, err := c.Write([]byte{0, 1, 'k'}); err == nil {
		_, _ = c.Read(make([]byte, 2)) // "OK", or it has gone already
	}
}

func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
