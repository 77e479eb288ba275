package config

import (
	"maps"
	"slices"
)

// queueNames reads a list of queues.
func queueNames(p *[]string) setter {
	return func(n node) {
		list, ok := n.v.([]any)
		if !ok {
			n.fail(`%s is %s; write a list of queues such as ["default"]`, n.quote(), kindOf(n.v))
			return
		}
		names := make([]string, 0, len(list))
		for _, v := range list {
			entry := n
			entry.v = v
			name, ok := entry.text("default")
			switch {
			case !ok:
				return
			case !ValidQueue(name):
				n.fail("%s is no queue's name; %s", entry.quote(), queueNameRule)
				return
			case slices.Contains(names, name):
				n.fail("names %q twice; write it once", name)
				return
			}
			names = append(names, name)
		}
		*p = names
	}
}

// checkSends wants the queues that handlers send to.
func (c *Config) checkSends(root node) {
	for job, h := range c.Handlers {
		if name := c.unknownQueue(h.Send); name != "" {
			root.key("handlers", job, "send").fail("there is no [queues.%s]; %s", name, didYouMean(name, slices.Collect(maps.Keys(c.Queues))))
		}
	}
}

// unknownQueue is the first of the names that is no queue's.
func (c *Config) unknownQueue(names []string) string {
	for _, name := range names {
		if _, ok := c.Queues[name]; !ok {
			return name
		}
	}
	return ""
}
