/**
 * How the server is asked: in which form it takes the commands, until when a reply is waited for, and when it is not asked
 * at all. One of these per client, shared by all its limiters.
 *
 * The commands are the module's own, functions, or a script. The first call finds out which, by being sent in each form
 * until the server knows one. That is done again when a reply says that the form is gone, as after a failover. A server
 * without the module is asked for it again after a reconnection and once a minute, beside the calls.
 */

import { setTimeout as sleep } from "node:timers/promises";
import { type Connection, failure, type Word } from "./connection.js";
import { isReply, LostReplyError, meaning, UnavailableError, UnsupportedServerError } from "./errors.js";
import { library, script, scriptSha } from "./lua.js";

/** How the commands are sent: as `RL.*`, as `FCALL rl_*`, or as `EVALSHA`. */
export type Mode = "module" | "functions" | "script";

/** One call, before it is known in which form it is sent. */
export interface Call {
  /** The command without `RL.`, in lower case. */
  readonly name: "sliding" | "fixed" | "throttle" | "acquire" | "release" | "all" | "peek" | "refund" | "reset";
  readonly keys: readonly [Word, ...Word[]];
  /** What stands behind the keys. */
  readonly words: readonly Word[];
  /** Whether sending it twice does no harm. */
  readonly repeatable: boolean;
}

/** What a call knows of itself while it is under way. */
interface Attempt {
  readonly deadline: number;
  /** Whether the caller has been told the outcome. */
  over: boolean;
  /** The last refusal that says to ask again: a slot is on the move. */
  refusal: UnavailableError | undefined;
  /** Ends the call at its deadline. */
  timer: NodeJS.Timeout | undefined;
}

/** For how long a server that was unavailable is not asked. */
const PAUSE_MS = 1000;
/** How often a server without the module is asked for it. */
const PROBE_MS = 60_000;

const ALL_MODES: readonly Mode[] = ["module", "functions", "script"];
const COMMANDS = {
  sliding: "RL.SLIDING",
  fixed: "RL.FIXED",
  throttle: "RL.THROTTLE",
  acquire: "RL.ACQUIRE",
  release: "RL.RELEASE",
  peek: "RL.PEEK",
  refund: "RL.REFUND",
  reset: "RL.RESET",
} as const;
const servers = new WeakMap<Connection, Map<string, Server>>();
const breakers = new WeakMap<Connection, Breaker>();

/** The server behind a connection, in the modes that are allowed. */
export function serverOf(connection: Connection, mode: Mode | "auto"): Server {
  if (mode !== "auto" && !ALL_MODES.includes(mode)) {
    throw new TypeError(`mode must be "auto", "module", "functions" or "script", not ${JSON.stringify(mode)}`);
  }
  const known = servers.get(connection) ?? new Map<string, Server>();
  servers.set(connection, known);
  const server = known.get(mode) ?? new Server(connection, mode === "auto" ? ALL_MODES : [mode]);
  known.set(mode, server);
  return server;
}

export class Server {
  readonly #connection: Connection;
  readonly #modes: readonly Mode[];
  readonly #breaker: Breaker;
  #mode: Mode | undefined;
  #finding: Promise<unknown> | undefined;
  /** When the server is asked again for what is better than the mode in use. */
  #probeAt = Number.POSITIVE_INFINITY;
  /** Redis 6.2 has no EVALSHA_RO. */
  #readOnlyScripts = true;
  #answers = 0;

  constructor(connection: Connection, modes: readonly Mode[]) {
    this.#connection = connection;
    this.#modes = modes;
    const breaker = breakers.get(connection) ?? new Breaker(connection);
    breakers.set(connection, breaker);
    this.#breaker = breaker;
    connection.onReconnect?.(() => {
      this.#probeAt = 0;
    });
  }

  get mode(): Mode | undefined {
    return this.#mode;
  }

  /**
   * Resolves with the reply, after `timeout` milliseconds at the latest. Rejects with the server's own error if that is
   * permanent, else with an {@link UnavailableError}.
   *
   * Replies that have arrived by the deadline are read before a call is given up: a process that was busy finds its timer
   * and the reply at the same time, and timers come first.
   */
  call(call: Call, timeout: number): Promise<unknown> {
    const now = performance.now();
    const node = this.#breaker.enter(call.keys[0], now);
    const attempt: Attempt = { deadline: now + timeout, over: false, refusal: undefined, timer: undefined };
    // No more promises than it takes: this is what each request of an application goes through.
    return new Promise((resolve, reject) => {
      const failed = (error: unknown) => {
        // A reply, whatever it says, shows that the server is there. That of a slot on the move says nothing of others.
        if (!(error instanceof UnavailableError) || attempt.refusal) this.#breaker.close(node);
        else this.#breaker.open(call.keys[0], error);
        reject(error);
      };
      const answered = (reply: unknown) => {
        if (!this.#settle(attempt)) return;
        this.#breaker.close(node);
        if (now >= this.#probeAt) this.#probe(call);
        resolve(reply);
      };
      const refused = (error: unknown) => {
        if (this.#settle(attempt)) failed(error);
      };
      attempt.timer = setTimeout(() => this.#expire(attempt, timeout, failed), timeout);
      const mode = this.#mode;
      if (mode === undefined) this.#askFirst(call, attempt).then(answered, refused);
      else {
        const again = (error: unknown) => this.#askAgain(error, mode, call, attempt).then(answered, refused);
        this.#transmit(this.#inForm(mode, call), call, timeout).then(answered, again);
      }
    });
  }

  /** Whether somebody still waits for the answer of a call, which is over with it. */
  #settle(attempt: Attempt): boolean {
    clearTimeout(attempt.timer);
    this.#answers++;
    const waited = !attempt.over;
    attempt.over = true;
    return waited;
  }

  /** Gives a call up at its deadline, after the replies that have arrived. */
  #expire(attempt: Attempt, timeout: number, failed: (error: unknown) => void): void {
    let turns = 0;
    let answers = this.#answers;
    let until = attempt.deadline;
    const giveUp = () => {
      const now = performance.now();
      if (attempt.over) return;
      if (turns++ === 0 && now - until > 20) {
        // The process was busy, and may not even have written the call: it gets that time again.
        until = now + Math.min(now - until, 1000);
        attempt.timer = setTimeout(giveUp, until - now);
      } else if (turns < 5 || (this.#answers !== answers && now - until < 500)) {
        answers = this.#answers;
        setImmediate(giveUp);
      } else {
        attempt.over = true;
        failed(new LostReplyError(`No reply within ${timeout} ms: the call may have been counted, or not`));
      }
    };
    giveUp();
  }

  /** Goes on after the error of a call in the known mode, which the server may not have any more. */
  async #askAgain(error: unknown, mode: Mode, call: Call, attempt: Attempt): Promise<unknown> {
    try {
      return await this.#sendAgain(error, this.#inForm(mode, call), call, attempt);
    } catch (error) {
      if (!isGone(error) && !(call.name === "peek" && isForbidden(error))) throw error;
      // Another call may have found the new mode meanwhile.
      if (this.#mode === mode) this.#mode = undefined;
      return this.#findFor(call, attempt);
    }
  }

  /** A crowd of first calls lets one of them find the mode. Each waits for it until its own deadline. */
  async #askFirst(call: Call, attempt: Attempt): Promise<unknown> {
    if (this.#finding) {
      try {
        await this.#finding;
      } catch (error) {
        // What kept that call from an answer would keep this one from it.
        if (this.#mode === undefined && error instanceof UnavailableError) throw error;
      }
      const mode = this.#mode;
      if (mode !== undefined) {
        const left = attempt.deadline - performance.now();
        return this.#transmit(this.#inForm(mode, call), call, left).catch((error) =>
          this.#askAgain(error, mode, call, attempt),
        );
      }
    }
    return this.#findFor(call, attempt);
  }

  async #findFor(call: Call, attempt: Attempt): Promise<unknown> {
    const finding = this.#find(call, attempt);
    this.#finding = finding;
    try {
      return await finding;
    } finally {
      if (this.#finding === finding) this.#finding = undefined;
    }
  }

  /** Sends the call in each form until the server knows one. Any other answer, an error too, shows that it does. */
  async #find(call: Call, attempt: Attempt): Promise<unknown> {
    const attempts: Error[] = [];
    for (const mode of this.#modes) {
      try {
        const reply = await this.#introduce(mode, call, attempt);
        this.#mode = mode;
        this.#probeAt = performance.now() + PROBE_MS;
        if (mode === "functions") this.#checkLibrary(call.keys[0]);
        return reply;
      } catch (error) {
        if (!(error instanceof NotThisMode)) throw error;
        attempts.push(error.cause as Error);
      }
    }
    throw new UnsupportedServerError(attempts);
  }

  /** The call in a form that the server may not know yet: the library and the script are sent along. */
  async #introduce(mode: Mode, call: Call, attempt: Attempt): Promise<unknown> {
    try {
      return await this.#send(this.#inForm(mode, call), call, attempt);
    } catch (error) {
      if (!isGone(error) && !isForbidden(error)) throw error;
      if (!isMissing(error)) {
        if (mode === "module" && isForbidden(error)) throw error;
        if (mode !== "script" || call.name !== "peek" || !this.#readOnlyScripts) throw new NotThisMode(error);
        this.#readOnlyScripts = false;
        return this.#introduce(mode, call, attempt);
      }
    }
    try {
      if (mode === "functions") await this.#load(call, attempt);
      return await this.#send(mode === "script" ? this.#inSource(call) : this.#inForm(mode, call), call, attempt);
    } catch (error) {
      if (isGone(error) || isForbidden(error)) throw new NotThisMode(error);
      throw error;
    }
  }

  /** Puts the library where the call goes. One of that name is replaced if it is ours and older. */
  async #load(call: Call, attempt: Attempt): Promise<void> {
    const send = (...command: Word[]) => this.#send(command, { ...call, name: "reset", repeatable: true }, attempt);
    try {
      await send("FUNCTION", "LOAD", library).catch((error) => {
        if (!isReply(error) || !/already exists/i.test(error.message)) throw error;
        return replaceOlder(send);
      });
    } catch (error) {
      throw isReply(error) ? new NotThisMode(error) : error;
    }
  }

  /**
   * Asks the server whether it has got the module meanwhile, and for an older library. No call waits for that, and no error
   * of it is seen: what is in use goes on.
   */
  #probe({ keys: [key] }: Call): void {
    this.#probeAt = performance.now() + PROBE_MS;
    if (this.#mode !== "module" && this.#modes.includes("module")) {
      this.#beside(key)("RL.PEEK", key, "SLIDING", "1", "1", "COST", "0").then(
        () => {
          this.#mode = "module";
        },
        () => {},
      );
    }
    if (this.#mode === "functions") this.#checkLibrary(key);
  }

  #checkLibrary(key: Word): void {
    replaceOlder(this.#beside(key)).catch(() => {});
  }

  /** Sends commands to the node of a key, beside the calls. */
  #beside(key: Word): (...command: Word[]) => Promise<unknown> {
    return (...command) => this.#connection.send(command, { key, readOnly: false, timeout: PAUSE_MS });
  }

  /** Sends one command; asks again while a slot is on the move, and after a lost reply if that does no harm. */
  async #send(command: readonly Word[], call: Call, attempt: Attempt): Promise<unknown> {
    const left = attempt.deadline - performance.now();
    // The caller has been told by now that there is no answer.
    if (left <= 0) throw new UnavailableError("The deadline has passed");
    try {
      return await this.#transmit(command, call, left);
    } catch (error) {
      return this.#sendAgain(error, command, call, attempt);
    }
  }

  /** Goes on after an error: throws what is to be thrown, or sends again. */
  async #sendAgain(error: unknown, command: readonly Word[], call: Call, attempt: Attempt): Promise<unknown> {
    for (let pause = 4; ; pause = Math.min(pause * 2, 128)) {
      const cause = this.#judged(error, call, attempt);
      // Half of the pause is random, so that callers do not come back in step.
      const wait = pause * (0.5 + Math.random() / 2);
      if (performance.now() + wait > attempt.deadline) throw cause;
      await sleep(wait);
      const left = attempt.deadline - performance.now();
      if (left <= 0) throw cause;
      try {
        return await this.#transmit(command, call, left);
      } catch (again) {
        error = again;
      }
    }
  }

  /** Returns the error as one after which the call may be sent again, or throws it. */
  #judged(error: unknown, call: Call, attempt: Attempt): UnavailableError {
    if (error instanceof TypeError || error instanceof RangeError) throw error;
    if (isReply(error)) {
      const what = meaning(error.message, this.#connection.cluster);
      if (what === "probe" || what === "permanent") throw error;
      const cause = new UnavailableError(`The server cannot decide now: ${error.message}`, { cause: error });
      if (what === "unavailable") throw cause;
      attempt.refusal = cause;
      return cause;
    }
    attempt.refusal = undefined;
    const cause = failure(error);
    if (!(cause instanceof LostReplyError && call.repeatable)) throw cause;
    return cause;
  }

  #transmit(command: readonly Word[], call: Call, timeout: number): Promise<unknown> {
    try {
      return this.#connection.send(command, { key: call.keys[0], readOnly: call.name === "peek", timeout });
    } catch (error) {
      return Promise.reject(error);
    }
  }

  #inForm(mode: Mode, call: Call): Word[] {
    const { name, keys, words } = call;
    const count = String(keys.length);
    switch (mode) {
      case "module":
        if (name === "all") return ["RL.ALL", count, ...keys, ...words];
        return [COMMANDS[name], ...keys, ...words];
      case "functions":
        return [name === "peek" ? "FCALL_RO" : "FCALL", `rl_${name}`, count, ...keys, ...words];
      case "script":
        return [this.#scripted("EVALSHA", name), scriptSha, count, ...keys, name, ...words];
    }
  }

  #inSource(call: Call): Word[] {
    const { name, keys, words } = call;
    return [this.#scripted("EVAL", name), script, String(keys.length), ...keys, name, ...words];
  }

  #scripted(command: string, name: Call["name"]): string {
    return name === "peek" && this.#readOnlyScripts ? `${command}_RO` : command;
  }
}

/** Replaces a library of ours that is older than this package's. A newer one, or another's, is left alone. */
async function replaceOlder(send: (...command: Word[]) => Promise<unknown>): Promise<void> {
  const list = JSON.stringify(await send("FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE"));
  const older = list.includes("redis-rl") && libraryVersion(list) < libraryVersion(library);
  if (older) await send("FUNCTION", "LOAD", "REPLACE", library);
}

/** The version that a library says it has; 0 for one from before there were versions. */
export function libraryVersion(code: string): number {
  return Number(/(?:^|\n|\\n)-- Version (\d+)\b/.exec(code)?.[1] ?? 0);
}

class NotThisMode extends Error {
  constructor(cause: unknown) {
    super("the server does not know this form", { cause });
  }
}

/**
 * Which nodes are not asked, because they were unavailable a moment ago. When the pause is over one call goes through, and
 * the others are refused until it has an answer. Outside of a cluster there is one node.
 */
class Breaker {
  readonly #connection: Connection;
  readonly #open = new Map<string, { until: number; trying: boolean; cause: UnavailableError }>();

  constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** Throws if the node of a key is not to be asked. Returns the node if this call finds out whether it is back. */
  enter(key: Word, now: number): string | undefined {
    if (this.#open.size === 0) return undefined;
    const node = this.#nodeOf(key);
    const state = this.#open.get(node);
    if (!state) return undefined;
    if (state.trying || now < state.until) {
      throw new UnavailableError(
        `The call was not sent: the server was unavailable a moment ago: ${state.cause.message}`,
        {
          cause: state.cause,
        },
      );
    }
    state.trying = true;
    return node;
  }

  open(key: Word, cause: UnavailableError): void {
    this.#open.set(this.#nodeOf(key), { until: performance.now() + PAUSE_MS, trying: false, cause });
  }

  close(node: string | undefined): void {
    if (node !== undefined) this.#open.delete(node);
  }

  #nodeOf(key: Word): string {
    return this.#connection.nodeOf?.(key) ?? "";
  }
}

/** Whether a reply says that the server does not take this form (any more). */
function isGone(error: unknown): boolean {
  return isReply(error) && meaning(error.message) === "probe";
}

/** Whether it takes the form, and only lacks the library or the script. */
function isMissing(error: unknown): boolean {
  return error instanceof Error && /function not found|NOSCRIPT/i.test(error.message);
}

/** Whether the user may not run the command. A key that is forbidden is forbidden in every form. */
function isForbidden(error: unknown): boolean {
  return error instanceof Error && /^NOPERM.*command/i.test(error.message);
}
