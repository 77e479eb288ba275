package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"testing"
	"time"
)

// BenchmarkStart starts the command on the embedded broker with one Go handler, whose
// compiled code is cached, and a message waiting. It reports the time from exec to the
// message's end, and the resident memory of the process a second after it.
func BenchmarkStart(b *testing.B) {
	s := newSite(b, fmt.Sprintf(killConfig, embedded, 4))
	s.puppet("puppet")
	p := s.start() // compiles
	p.stop()
	var took time.Duration
	rss := 0
	for range b.N {
		s.must("send", "q", "puppet", "--payload", "12")
		began := time.Now()
		p := s.start()
		p.waitFor("dead-lettered")
		took += time.Since(began)
		time.Sleep(time.Second)
		rss = max(rss, residentKiB(b, p.cmd.Process.Pid))
		p.stop()
	}
	b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ms/first-message")
	b.ReportMetric(float64(rss)/1024, "MiB-RSS")
}

func residentKiB(b *testing.B, pid int) int {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		b.Skip("no /proc here")
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(status)
	if m == nil {
		b.Skip("no VmRSS here")
	}
	n, err := strconv.Atoi(string(m[1]))
	if err != nil {
		b.Fatal(err)
	}
	return n
}
