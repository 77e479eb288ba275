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
	keyWorker   = "worker"
	keyHeader   = "header"
	keyValue    = "value"
)
