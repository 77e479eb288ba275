package natsdriver

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// TestJobsAsSubjects: every job makes a valid subject below the prefix, and comes back from it.
func TestJobsAsSubjects(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		job := rapid.OneOf(rapid.StringN(1, 60, 200), rapid.StringMatching(`[.a%*> $]{1,12}`)).Draw(t, "job")
		for _, filter := range []string{"guesthand.q.>", "orders.*", ">"} {
			n := names{subject: filter}
			subject, err := n.subjectFor(job)
			if err != nil {
				t.Fatal(err)
			}
			if !covers(filter, subject) || !validFilter(subject) || wildcard(subject) {
				t.Fatalf("subject %q for %q below %s", subject, job, filter)
			}
			if got := n.jobOf(subject); got != job {
				t.Fatalf("%q came back as %q from %s", job, got, subject)
			}
		}
	})
}

// TestTextInHeaders: any text comes back from a header value, and is one line.
func TestTextInHeaders(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.OneOf(rapid.String(), rapid.StringMatching(`[ %0A\n\r\t]{0,9}`)).Draw(t, "text")
		e := escapeText(s)
		if strings.ContainsAny(e, "\r\n\x00") || strings.Trim(e, " \t") != e || unescapeText(e) != s {
			t.Fatalf("%q is %q, which is %q", s, e, unescapeText(e))
		}
	})
}

func TestCovers(t *testing.T) {
	for _, c := range []struct {
		pattern, filter string
		want            bool
	}{
		{"a.>", "a.b.c", true}, {"a.>", "a.b.>", true}, {"a.>", "a.>", true}, {"a.>", "a", false},
		{"a.*", "a.b", true}, {"a.*", "a.*", true}, {"a.*", "a.>", false}, {"a.*", "a.b.c", false},
		{"a.b", "a.*", false}, {">", "a.>", true}, {"a", "a", true}, {"a", "b", false},
	} {
		if got := covers(c.pattern, c.filter); got != c.want {
			t.Errorf("%s covers %s: %t", c.pattern, c.filter, got)
		}
	}
}

func TestParseReply(t *testing.T) {
	want := replyMeta{delivered: 3, seq: 17, order: 20, stamp: 1700000000123456789}
	for _, s := range []string{
		"$JS.ACK.ORDERS.guesthand.3.17.20.1700000000123456789.5",
		"$JS.ACK._.hash.ORDERS.guesthand.3.17.20.1700000000123456789.5",
		"$JS.ACK.hub.hash.ORDERS.guesthand.3.17.20.1700000000123456789.5.token",
	} {
		if got, err := parseReply(s); err != nil || got != want {
			t.Errorf("%s: %+v, %v", s, got, err)
		}
	}
	for _, s := range []string{"", "_INBOX.x", "$JS.ACK.", "$JS.ACK.a.b.c", "$JS.ACK.a.b.x.1.2.3.4", "$JS.ACK.a.b.1.1.1.1.1.1"} {
		if got, err := parseReply(s); err == nil {
			t.Errorf("%q: %+v", s, got)
		}
	}
}

func TestAtLeast(t *testing.T) {
	for v, want := range map[string]bool{
		"2.10.4": true, "2.10.3": false, "2.9.99": false, "2.11.0-RC.1": true, "v3.0.0": true, "2.15.3": true, "": false, "1.99.99": false,
	} {
		if got := atLeast(v, MinimumServer); got != want {
			t.Errorf("%q: %t", v, got)
		}
	}
}

func FuzzParseReply(f *testing.F) {
	f.Add("$JS.ACK.ORDERS.guesthand.3.17.20.1700000000123456789.5")
	f.Fuzz(func(t *testing.T, s string) { _, _ = parseReply(s) })
}
