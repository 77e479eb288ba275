package abi

// Module is the import module of the native dialect. A second version would be a
// second module beside this one.
const Module = "guesthand_v1"

// HandleExport is the native dialect's entry: () -> i64.
const HandleExport = "handle"

// Errors that host calls return as a negative i32.
const (
	ErrAbsent      int32 = -1
	ErrNotGranted  int32 = -2
	ErrTooLarge    int32 = -3 // or over a quota
	ErrUnavailable int32 = -4 // I/O
	ErrMalformed   int32 = -5
	ErrTimedOut    int32 = -6
)

// MaxState is the most bytes of state one message carries from run to run.
const MaxState = 4 << 10

// Headers of ours on a message. Names compare without regard to case.
const (
	HeaderPrefix      = "Guesthand-"
	HeaderJob         = "Guesthand-Job"
	HeaderID          = "Guesthand-Id"
	HeaderKey         = "Guesthand-Key"          // duplicate suppression at the broker
	HeaderMaxAttempts = "Guesthand-Max-Attempts" // a producer's own, smaller budget
	HeaderMaxDelays   = "Guesthand-Max-Delays"
	HeaderNotBefore   = "Guesthand-Not-Before" // RFC 3339 with nanoseconds
	HeaderReplyTo     = "Guesthand-Reply-To"
	HeaderOutcome     = "Guesthand-Outcome" // on a reply
	HeaderParent      = "Guesthand-Parent"  // the id of the message whose run sent this one
	HeaderReplays     = "Guesthand-Replays" // how often it was replayed from the dead letters
	HeaderPrior       = "Guesthand-Prior"   // attempts made before the last replay
	HeaderEnqueued    = "Guesthand-Enqueued-At"
)

// Headers of ours on a dead letter, beside the original's own.
const (
	HeaderDeathReason        = "Guesthand-Death-Reason"
	HeaderDeathOutcome       = "Guesthand-Death-Outcome"
	HeaderDeathCause         = "Guesthand-Death-Cause"
	HeaderDeathQueue         = "Guesthand-Death-Queue"
	HeaderDeathFailures      = "Guesthand-Death-Failures"
	HeaderDeathDelays        = "Guesthand-Death-Delays"
	HeaderDeathStalls        = "Guesthand-Death-Stalls"
	HeaderDeathInterruptions = "Guesthand-Death-Interruptions"
	HeaderDeathAttempt       = "Guesthand-Death-Attempt"
	HeaderDeathTime          = "Guesthand-Death-Time"
	HeaderDeathDigest        = "Guesthand-Death-Digest"
	HeaderDeathWorker        = "Guesthand-Death-Worker"
	HeaderDeathErrors        = "Guesthand-Death-Errors" // the last errors, JSON, oldest first
)

// Headers of CloudEvents in binary mode that stand in for ours.
const (
	HeaderCEType = "ce-type"
	HeaderCEID   = "ce-id"
)

// HeaderTraceparent is W3C trace context, passed through untouched.
const HeaderTraceparent = "traceparent"
