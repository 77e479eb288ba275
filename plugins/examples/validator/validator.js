// Validator is a sample handler: it checks that a payload is a JSON object with the members that
// its configuration names, and hands it on as the result. What is none becomes a dead letter
// whose reason says what is wrong. main.go is the same in Go.
//
//     [handlers.validator]
//     config = { required = "id, email" }

export default function (message) {
  const object = message.json(); // what is no JSON is permanent: the next run would find the same
  if (typeof object !== "object" || object === null || Array.isArray(object)) {
    throw guesthand.permanent("decode the payload: no object");
  }
  const required = (guesthand.config("required") || "").split(",").map((name) => name.trim());
  const missing = required.filter((name) => name && !Object.keys(object).includes(name));
  if (missing.length) throw guesthand.permanent(`missing: ${missing.join(", ")}`);
  return message.bytes;
}
