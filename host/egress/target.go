package egress

// Target is a server that may be asked: a scheme, a host or a suffix of hosts, and a port.
type Target struct{}
