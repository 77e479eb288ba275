// An Extism plug-in with the AssemblyScript PDK as it is. The input's first line says what to do,
// the second with what.
import { Config, Host, LogLevel, Memory, Var } from "@extism/as-pdk";
import { error_set, http_request } from "@extism/as-pdk/lib/env";

export function myAbort(message: string | null, file: string | null, line: u32, column: u32): void {
  error_set(Memory.allocateString(message === null ? "abort" : message).offset);
  unreachable();
}

function fail(code: i32, text: string): i32 {
  error_set(Memory.allocateString(text).offset);
  return code;
}

export function handle(): i32 {
  const input = Host.inputString();
  const end = input.indexOf("\n");
  const verb = end < 0 ? input : input.substring(0, end);
  const rest = end < 0 ? "" : input.substring(end + 1);
  if (verb == "upper") {
    Host.outputString(rest.toUpperCase());
    return 0;
  }
  if (verb == "config") {
    const value = Config.get(rest);
    if (value === null) return fail(12, "no setting " + rest);
    Host.outputString(value);
    return 0;
  }
  if (verb == "count") {
    const before = Var.getString("count");
    const n = before === null ? 1 : I32.parseInt(before) + 1;
    Var.set("count", Uint8Array.wrap(String.UTF8.encode(n.toString())));
    Host.outputString(n.toString());
    return 0;
  }
  if (verb == "forget") {
    Var.remove("count");
    return 0;
  }
  if (verb == "log") {
    Host.log(LogLevel.Info, rest);
    Host.log(LogLevel.Error, rest);
    return 0;
  }
  if (verb == "wait") return fail(10 | (30 << 8), rest);
  if (verb == "later") return fail(11 | (2 << 8), rest);
  if (verb == "permanent") return fail(12, rest);
  if (verb == "mistaken") return fail(0, rest);
  if (verb == "http") {
    const request = Memory.allocateString('{"url":"' + rest + '","headers":{}}');
    const at = http_request(request.offset, 0);
    Host.outputString(new Memory(at, 5).toString());
    return 0;
  }
  if (verb == "abort") throw new Error(rest);
  return fail(1, "unknown verb " + verb);
}
