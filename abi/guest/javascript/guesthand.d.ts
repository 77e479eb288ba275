// What a JavaScript handler finds in its runtime, for editors and for TypeScript. The script is a
// module with a default export of type Handler; what it returns is the run's result. Times are
// milliseconds.

type Data = string | ArrayBuffer | ArrayBufferView;

/** Text and bytes are the result as they are, anything else as JSON. */
type Handler = (message: Message) => unknown | Promise<unknown>;

/** The message being handled. */
interface Message {
  /** The producer's bytes. */
  readonly bytes: Uint8Array;
  /** The payload as text. */
  readonly text: string;
  /** The payload decoded from JSON. What is none is permanent. */
  json(): any;
  /** Appends to the run's result, which the host uses when the run succeeds. */
  write(value: unknown): void;

  /** The message's id, the same in every run of it. */
  readonly id: string;
  /** What was asked for. */
  readonly job: string;
  /** Where the message came from. */
  readonly queue: string;
  /** The number of this run, from 1. It counts every run; the next four say how earlier ones ended. */
  readonly attempt: number;
  readonly failures: number;
  readonly delays: number;
  readonly stalls: number;
  readonly interruptions: number;
  /** How many failures the message may have in all, 0 for no cap. */
  readonly maxAttempts: number;
  /** When the message was sent, null where that is not known. */
  readonly enqueuedAt: Date | null;
  /** When the host stops this run. See guesthand.remaining(). */
  readonly deadline: Date | null;
  /** The names of the message's headers. */
  readonly headers: string[];
  /** A header's first value, its name without regard to case. */
  header(name: string): string | undefined;
  /** The W3C trace context that the message came with. */
  readonly traceparent: string | undefined;

  /**
   * What an earlier run of this message, or this one, left: "" for nothing. Set it to keep up to
   * 4 KiB for the next run, on whatever worker; it is kept when the run ends in a retry,
   * retryAfter, delay or pause.
   */
  get state(): string;
  set state(value: Data);
  readonly stateBytes: Uint8Array;
}

interface GuesthandResponse {
  readonly status: number;
  /** Whether the status is below 400. */
  readonly ok: boolean;
  readonly bytes: Uint8Array;
  readonly text: string;
  json(): any;
  /** A header's value. The host keeps the headers of the latest response only. */
  header(name: string): string | undefined;
  /**
   * The response itself where it is ok, else it throws: retryAfter for 429 and 503 with Retry-After,
   * a ResponseError, which has no mark, for everything else.
   */
  check(): this;
}

type Reason = string | Error | null | undefined;

/** Errors that say what is to become of the message: to be thrown, or returned. */
interface GuesthandOutcome extends Error {
  readonly code: number;
  readonly delay: number;
}

declare const guesthand: {
  /** An ordinary failure, retried after the policy's backoff. It takes back a mark that reason has. */
  retry(reason?: Reason, options?: { cause: unknown }): GuesthandOutcome;
  /** A failure to be retried in ms instead of the policy's backoff; 0 or less: the backoff. */
  retryAfter(reason: Reason, ms: number, options?: { cause: unknown }): GuesthandOutcome;
  /** Another run in ms, 1 s at the least. Nothing failed and no attempt is spent. */
  delay(reason: Reason, ms: number, options?: { cause: unknown }): GuesthandOutcome;
  /** A failure that no retry can help: the message becomes a dead letter. */
  permanent(reason?: Reason, options?: { cause: unknown }): GuesthandOutcome;
  /** The message is left to the broker's own rejection. */
  reject(reason?: Reason, options?: { cause: unknown }): GuesthandOutcome;
  /** delay, and this job takes no new message on this host for ms either. */
  pause(reason: Reason, ms: number, options?: { cause: unknown }): GuesthandOutcome;

  readonly Outcome: Function;
  /** What a host call answered: `answer` is "not granted", "too large", "timed out" and so on. */
  readonly HostError: { new (doing: string, code: number): Error & { readonly code: number; readonly answer: string } };

  /** A response's status that is no success. */
  readonly ResponseError: { new (status: number): Error & { readonly status: number } };

  /** A value from the handler's configuration. It works at the script's top level too. */
  config(name: string): string | undefined;
  /** A secret that the configuration gives this handler. */
  secret(name: string): string | undefined;
  /** A custom section of this module. */
  section(name: string): Uint8Array | undefined;
  /** Any attribute by its name in the ABI. */
  attribute(name: string): string | undefined;
  /** Time until the run's deadline or, once the host is stopping, until its drain's end. */
  remaining(): number;

  /** Makes an HTTP request and waits for the answer. It throws where there was none. */
  fetch(url: string, options?: { method?: string; headers?: Record<string, string>; body?: unknown }): GuesthandResponse;
  /** What a Retry-After header means; 0, the policy's backoff, where it means nothing. */
  parseRetryAfter(value: string, date?: string): number;
  /** Hands a message to the host, which publishes it if this run succeeds and drops it if not. */
  send(message: { queue: string; job: string; payload?: unknown; key?: string; delay?: number; headers?: Record<string, string> }): void;

  /** Values by key, up to 256 bytes, shared by all hosts; each handler has its own. */
  readonly kv: {
    get(key: Data): Uint8Array | undefined;
    getText(key: Data): string | undefined;
    put(key: Data, value: unknown, options?: { ttl?: number }): void;
    /** Stores only where there is none. Of all that try at once, on any host, one is told true. */
    create(key: Data, value: unknown, options?: { ttl?: number }): boolean;
    /** Whether there was one. */
    delete(key: Data): boolean;
  };

  readonly log: { debug(...values: unknown[]): void; info(...values: unknown[]): void; warn(...values: unknown[]): void; error(...values: unknown[]): void };
};
