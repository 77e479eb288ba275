/** The conformance handler as a reactor. */
import { run } from "../../assemblyscript/guesthand";
import { onMessage } from "./handler";

export function handle(): i64 { return run(onMessage); }
