// Webhook is a sample handler: it posts each payload to the URL in its configuration. Busy servers
// are asked again when they say (Retry-After), broken ones by the policy's backoff, and what a
// server refuses is not sent again. main.go is the same in Go.
//
//     [handlers.webhook]
//     http   = { allow = ["hooks.example.com"] }
//     config = { url = "https://hooks.example.com/orders" }

export default function (message) {
  const url = guesthand.config("url");
  if (!url) throw guesthand.retry("config.url is not set"); // the operator can mend it
  const response = guesthand.fetch(url, {
    method: "POST",
    headers: {
      "Content-Type": message.header("Content-Type") || "application/octet-stream",
      "Idempotency-Key": message.id, // the same in every run, so that a repeat is recognisable
    },
    body: message.bytes,
  });
  try {
    response.check();
  } catch (e) {
    throw refused(response.status) ? guesthand.permanent(e) : e;
  }
}

// refused tells answers that would be the same next time.
function refused(status) {
  return status >= 400 && status < 500 && status !== 408 && status !== 429;
}
