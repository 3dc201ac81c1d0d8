/**
 * How the server takes the commands: as the module's own, as functions, or as a script. The first call finds out, and
 * all others go that way. It is asked anew when a reply says that the way is gone, as after a failover.
 */

import { setTimeout as sleep } from "node:timers/promises";
import type { Connection, Word } from "./connection.js";
import { LostReplyError, UnsupportedServerError } from "./errors.js";
import { library, script, scriptSha } from "./lua.js";

/** The way the commands are sent: `RL.*`, `FCALL rl_*`, or `EVALSHA`. */
export type Mode = "module" | "function" | "script";

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

export interface ServerOptions {
  readonly mode: Mode | "auto";
  readonly patienceMs: number;
  readonly resendLost: boolean;
}

export class Server {
  readonly #connection: Connection;
  readonly #options: ServerOptions;
  readonly #ways: readonly Mode[];
  #mode: Mode | undefined;
  #looking: Promise<unknown> | undefined;

  constructor(connection: Connection, options: ServerOptions) {
    this.#connection = connection;
    this.#options = options;
    this.#ways = options.mode === "auto" ? ["module", "function", "script"] : [options.mode];
  }

  get mode(): Mode | undefined {
    return this.#mode;
  }

  async call(call: Call): Promise<unknown> {
    // A crowd of first calls waits for one of them to find the way.
    if (this.#mode === undefined && this.#looking) await this.#looking.catch(() => {});
    const mode = this.#mode;
    if (mode !== undefined) {
      try {
        return await this.#send(inForm(mode, call), call);
      } catch (error) {
        if (!isGone(mode, error)) throw error;
        if (this.#mode === mode) this.#mode = undefined;
      }
    }
    const look = this.#look(call);
    this.#looking = look;
    try {
      return await look;
    } finally {
      if (this.#looking === look) this.#looking = undefined;
    }
  }

  /** Sends the call in each form until the server knows one. Any other answer, an error too, shows that it does. */
  async #look(call: Call): Promise<unknown> {
    const attempts: Error[] = [];
    for (const mode of this.#ways) {
      try {
        const reply = await this.#introduce(mode, call);
        this.#mode = mode;
        return reply;
      } catch (error) {
        if (!(error instanceof NotThisWay)) throw error;
        attempts.push(error.cause as Error);
      }
    }
    throw new UnsupportedServerError(attempts);
  }

  /** The call in a form that the server may not know yet: the library and the script are sent along. */
  async #introduce(mode: Mode, call: Call): Promise<unknown> {
    try {
      return await this.#send(inForm(mode, call), call);
    } catch (error) {
      if (!isGone(mode, error) && !(mode !== "module" && isForbidden(error))) throw error;
      if (mode === "module" || !/not found|NOSCRIPT/i.test((error as Error).message)) throw new NotThisWay(error);
    }
    try {
      if (mode === "function") await this.#load(call);
      return await this.#send(mode === "script" ? inSource(call) : inForm(mode, call), call);
    } catch (error) {
      if (error instanceof LoadFailed) throw new NotThisWay(error.cause);
      if (isGone(mode, error) || isForbidden(error)) throw new NotThisWay(error);
      throw error;
    }
  }

  /** Puts the library where the call goes. One that is there already is left alone: it may be somebody else's. */
  async #load(call: Call): Promise<void> {
    try {
      await this.#send(["FUNCTION", "LOAD", library], { ...call, name: "reset", repeatable: true });
    } catch (error) {
      if (!(error instanceof Error) || error instanceof LostReplyError) throw error;
      if (!/already exists/i.test(error.message)) throw new LoadFailed(error);
    }
  }

  /** Sends one command; asks again while a slot is on the move, and after a lost reply if that does no harm. */
  async #send(command: readonly Word[], call: Call): Promise<unknown> {
    const route = { key: call.keys[0], readOnly: call.name === "peek" };
    const deadline = performance.now() + this.#options.patienceMs;
    for (let pause = 4; ; pause = Math.min(pause * 2, 128)) {
      try {
        return await this.#connection.send(command, route);
      } catch (error) {
        const again =
          (error instanceof Error && error.message.startsWith("TRYAGAIN")) ||
          (error instanceof LostReplyError && (call.repeatable || this.#options.resendLost));
        // Half of the pause is random, so that callers do not come back in step.
        const wait = pause * (0.5 + Math.random() / 2);
        if (!again || performance.now() + wait > deadline) throw error;
        await sleep(wait);
      }
    }
  }
}

class NotThisWay extends Error {
  constructor(cause: unknown) {
    super("the server does not know this form", { cause });
  }
}

class LoadFailed extends NotThisWay {}

function inForm(mode: Mode, { name, keys, words }: Call): Word[] {
  const count = String(keys.length);
  switch (mode) {
    case "module":
      return [`RL.${name.toUpperCase()}`, ...(name === "all" ? [count] : []), ...keys, ...words];
    case "function":
      return [name === "peek" ? "FCALL_RO" : "FCALL", `rl_${name}`, count, ...keys, ...words];
    case "script":
      return ["EVALSHA", scriptSha, count, ...keys, name, ...words];
  }
}

function inSource({ name, keys, words }: Call): Word[] {
  return ["EVAL", script, String(keys.length), ...keys, name, ...words];
}

/** Whether a reply says that the server does not take this form (any more). */
function isGone(mode: Mode, error: unknown): boolean {
  if (!(error instanceof Error)) return false;
  // Servers that are no Redis, and proxies, have words of their own for a command they do not know.
  if (/unknown command|unsupported command|command is not (available|supported)/i.test(error.message)) return true;
  if (mode === "function") return /function not found/i.test(error.message);
  return mode === "script" && error.message.startsWith("NOSCRIPT");
}

/** Whether the user may not run FCALL, FUNCTION or EVALSHA. A key that is forbidden is forbidden in every form. */
function isForbidden(error: unknown): boolean {
  return error instanceof Error && /^NOPERM.*command/i.test(error.message);
}
