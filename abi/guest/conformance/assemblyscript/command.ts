/** The conformance handler as a program. */
import { runCommand } from "../../assemblyscript/guesthand";
import { onMessage } from "./handler";

export function _start(): void { runCommand(onMessage); }
