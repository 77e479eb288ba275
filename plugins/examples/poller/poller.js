// Poller is a sample handler: it waits for something slow. The payload is the URL of a status; as
// long as that answers 202 (accepted) the message waits, twice as long each time, and no attempt
// is spent. It counts its polls in the message's own state, so that it can give up by itself.
// main.go is the same in Go.

const firstWait = 10_000;
const maxPolls = 12; // the last wait is over five hours

export default function (message) {
  const url = message.text;
  if (!url) throw guesthand.permanent("the payload is to be the URL of a status");
  const response = guesthand.fetch(url).check(); // throws a retry, after the time the server asks for
  return response.status === 202 ? again(message) : response.bytes;
}

// again counts this poll and puts the message off.
function again(message) {
  const polls = Number(message.state) + 1;
  if (polls >= maxPolls) throw guesthand.permanent(`not ready after ${polls} polls`);
  message.state = String(polls);
  return guesthand.delay(`not ready at poll ${polls}`, firstWait * 2 ** (polls - 1));
}
