package sqstest

import (
	"crypto/md5"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Error is an error of the service, as the JSON protocol has it.
type Error struct {
	Code, Message string
	Status        int
}

func (e *Error) Error() string { return e.Code + ": " + e.Message }

func invalid(message string) *Error { return &Error{"InvalidParameterValue", message, 400} }

// request holds the fields of all actions; each reads its own.
type request struct {
	QueueName, QueueUrl         string
	Attributes                  map[string]string
	AttributeNames              []string
	MessageSystemAttributeNames []string
	MessageAttributeNames       []string
	MaxNumberOfMessages         *int
	WaitTimeSeconds             *int
	ReceiveRequestAttemptId     string
	Entries                     []entry
	entry
}

// entry is one of a batch, or the fields of a single send.
type entry struct {
	Id                      string
	ReceiptHandle           string
	VisibilityTimeout       *int
	MessageBody             string
	MessageAttributes       map[string]attribute
	MessageSystemAttributes map[string]attribute
	DelaySeconds            *int
	MessageGroupId          string
	MessageDeduplicationId  string
}

type attribute struct {
	DataType    string
	StringValue *string `json:",omitempty"`
	BinaryValue []byte  `json:",omitempty"`
}

type failedEntry struct {
	Id, Code, Message string
	SenderFault       bool
}

type batchResult struct {
	Successful []map[string]string
	Failed     []failedEntry
}

type received struct {
	MessageId, ReceiptHandle, Body, MD5OfBody string
	MD5OfMessageAttributes                    string               `json:",omitempty"`
	Attributes                                map[string]string    `json:",omitempty"`
	MessageAttributes                         map[string]attribute `json:",omitempty"`
}

func digest(s string) string {
	sum := md5.Sum([]byte(s))
	return hex.EncodeToString(sum[:])
}

// digestOf is the service's digest of attributes.
func digestOf(a map[string]attribute) string {
	if len(a) == 0 {
		return ""
	}
	h := md5.New()
	put := func(b []byte) {
		_ = binary.Write(h, binary.BigEndian, uint32(len(b))) // a hash takes everything
		h.Write(b)
	}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		v := a[name]
		put([]byte(name))
		put([]byte(v.DataType))
		if v.StringValue != nil {
			h.Write([]byte{1})
			put([]byte(*v.StringValue))
		} else {
			h.Write([]byte{2})
			put(v.BinaryValue)
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

// size is what counts against the limit.
func (e *entry) size() int {
	n := len(e.MessageBody)
	for name, v := range e.MessageAttributes {
		n += len(name) + len(v.DataType) + len(v.BinaryValue)
		if v.StringValue != nil {
			n += len(*v.StringValue)
		}
	}
	return n
}

func legalText(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r < ' ' && r != '\t' && r != '\n' && r != '\r' || r == 0xfffe || r == 0xffff
	})
}

// check refuses what the service refuses about a message, whatever the queue holds.
func (e *entry) check(fifo bool, maxSize int) *Error {
	switch {
	case e.MessageBody == "":
		return &Error{"MissingParameter", "The request must contain the parameter MessageBody.", 400}
	case !legalText(e.MessageBody):
		return &Error{"InvalidMessageContents", "Invalid binary character was found in the message body.", 400}
	case e.size() > maxSize:
		return invalid("One or more parameters are invalid. Reason: Message must be shorter than the limit.")
	case len(e.MessageAttributes) > 10:
		return invalid("Number of message attributes exceeds the allowed maximum [10].")
	case e.DelaySeconds != nil && (*e.DelaySeconds < 0 || *e.DelaySeconds > 900):
		return invalid("Value for parameter DelaySeconds is invalid. Reason: Must be >= 0 and <= 900.")
	case fifo && e.DelaySeconds != nil && *e.DelaySeconds != 0:
		return invalid("Value for parameter DelaySeconds is invalid. Reason: The request include parameter that is not valid for this queue type.")
	case fifo && e.MessageGroupId == "":
		return &Error{"MissingParameter", "The request must contain the parameter MessageGroupId.", 400}
	case !fifo && e.MessageDeduplicationId != "":
		return invalid("The request includes a parameter that is not valid for this queue type: MessageDeduplicationId.")
	case len(e.MessageGroupId) > 128 || len(e.MessageDeduplicationId) > 128 || !printable(e.MessageGroupId+e.MessageDeduplicationId):
		return invalid("MessageGroupId and MessageDeduplicationId have up to 128 alphanumeric and punctuation characters.")
	}
	for name := range e.MessageSystemAttributes {
		if name != "AWSTraceHeader" {
			return invalid("Message system attribute " + name + " is not supported.")
		}
	}
	for name, v := range e.MessageAttributes {
		if err := checkAttribute(name, v); err != nil {
			return err
		}
	}
	return nil
}

func checkAttribute(name string, v attribute) *Error {
	legal := name != "" && len(name) <= 256 && !strings.HasPrefix(name, ".") && !strings.HasSuffix(name, ".") &&
		!strings.Contains(name, "..") && !hasReservedPrefix(name) && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-' || r == '.')
	})
	kind, _, _ := strings.Cut(v.DataType, ".")
	switch {
	case !legal:
		return invalid("Message (user) attribute name '" + name + "' is invalid.")
	case kind != "String" && kind != "Number" && kind != "Binary":
		return invalid("The message attribute '" + name + "' has an invalid message attribute type.")
	case kind == "Binary" && len(v.BinaryValue) == 0, kind != "Binary" && (v.StringValue == nil || *v.StringValue == ""):
		return invalid("The message attribute '" + name + "' must contain a non-empty value.")
	case v.StringValue != nil && !legalText(*v.StringValue):
		return &Error{"InvalidMessageContents", "Invalid binary character was found in the attribute " + name + ".", 400}
	}
	return nil
}

func hasReservedPrefix(name string) bool {
	l := strings.ToLower(name)
	return strings.HasPrefix(l, "aws.") || strings.HasPrefix(l, "amazon.")
}

func printable(s string) bool {
	return !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' })
}

// checkBatch refuses a batch as a whole.
func checkBatch(entries []entry, sending bool) *Error {
	if len(entries) == 0 {
		return &Error{"EmptyBatchRequest", "There should be at least one entry.", 400}
	}
	if len(entries) > 10 {
		return &Error{"TooManyEntriesInBatchRequest", "Maximum number of entries per request are 10.", 400}
	}
	seen := map[string]bool{}
	total := 0
	for i := range entries {
		e := &entries[i]
		if e.Id == "" || len(e.Id) > 80 || strings.ContainsFunc(e.Id, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '-')
		}) {
			return &Error{"InvalidBatchEntryId", "A batch entry id is invalid.", 400}
		}
		if seen[e.Id] {
			return &Error{"BatchEntryIdsNotDistinct", "Id " + e.Id + " repeated.", 400}
		}
		seen[e.Id] = true
		total += e.size()
	}
	if sending && total > maxBytes {
		return &Error{"BatchRequestTooLong", "Batch requests cannot be longer than 1048576 bytes.", 400}
	}
	return nil
}

func parse(b []byte) (*request, *Error) {
	r := &request{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, &Error{"SerializationException", err.Error(), 400}
	}
	return r, nil
}
