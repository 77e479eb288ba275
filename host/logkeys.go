package host

// The keys of structured log records, in one place so that a search for one finds every use.
const (
	keyQueue    = "queue"
	keyBroker   = "broker"
	keyDriver   = "driver"
	keyJob      = "job"
	keyID       = "id"
	keyAttempt  = "attempt"
	keyOutcome  = "outcome"
	keyCause    = "cause"
	keyReason   = "reason"
	keyDelay    = "delay"
	keyDigest   = "digest"
	keyDuration = "duration"
	keyError    = "error"
	keyVerdict  = "verdict"
	keyStalls   = "stalls"
	keyCount    = "count"
	keyHidden   = "hidden" // lines of the kind that were not shown since the last one
	keyWorker   = "worker"
	keyHeader   = "header"
	keyValue    = "value"
)
