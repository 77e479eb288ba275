package rabbitdriver

import (
	"strconv"
	"time"
)

// Hold queues keep messages for 1 s, 2 s, 4 s and so on: all in one queue wait the same time, so
// that none is behind another that takes longer.
const (
	// maxStep is the longest hold, 2^22 s: RabbitMQ's times are milliseconds in 32 bits.
	maxStep = 22
	// overshoot is the part of a delay by which it may come late, to spare hops.
	overshoot = 20
)

func holdTime(step int) time.Duration { return time.Second << step }

// holdName is the queue of a step, named after its seconds.
func (n names) holdName(step int) string {
	return n.holdPrefix + strconv.FormatInt(int64(holdTime(step)/time.Second), 10) + "s"
}

// maxStepFor is the longest hold not above a limit, at least the first.
func maxStepFor(limit time.Duration) int {
	step := 0
	for step < maxStep && holdTime(step+1) <= limit {
		step++
	}
	return step
}

// hop chooses the next hold for what remains of a delay: the shortest that covers it, where
// that is at most a second or a twentieth of the whole too long, else the longest that fits
// into it.
func hop(remaining, whole time.Duration, most int) int {
	late := max(time.Second, whole/overshoot)
	for step := 0; step <= most; step++ {
		if holdTime(step) >= remaining {
			if step == 0 || holdTime(step)-remaining <= late {
				return step
			}
			return step - 1
		}
	}
	return most
}
