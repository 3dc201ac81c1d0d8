/**
 * How a server is asked: in which form it takes the commands, until when a reply is waited for, and when it is not asked
 * at all. In a cluster all of that is kept for each node. Limiters over one client share it.
 */

// Not the global one, in whose place an app's tests may put a stopped clock that has the time alone.
import { performance } from "node:perf_hooks";
import { setTimeout as sleep } from "node:timers/promises";
import { oneOf } from "./checks.js";
import type { Connection, Route } from "./connection.js";
import { BREAKER_PAUSE, MODES, PROBE_AGAIN } from "./defaults.js";
import { isReply, LostReplyError, meaning, reason, UnavailableError, UnsupportedServerError } from "./errors.js";
import type { Word } from "./keys.js";
import { library, script, scriptSha } from "./lua.js";

/** How the commands are sent: as `RL.*`, as `FCALL rl_*`, or as `EVALSHA`. */
export type Mode = (typeof MODES)[number];

/** The commands without `RL.`, in lower case; `set` is the server's own. */
export type Command = RuleCommand | "release" | "all" | "peek" | "refund" | "reset" | "settle" | "set";
export type RuleCommand = "sliding" | "fixed" | "throttle" | "acquire";

/** One call, before it is known in which form it is sent. */
export interface Call {
  readonly name: Command;
  readonly keys: readonly [Word, ...Word[]];
  readonly words: readonly Word[];
  /** Whether it does no harm when it is sent twice, which some commands never do. */
  readonly repeatable?: boolean;
}

/** A call that gets no reply by its deadline says that the node is unavailable if that was silent for so long. */
const SILENCE_MS = 150;
/** By how much a call may be given up early. */
export const EARLY_MS = 20;
/** For how long a process that is busy may exceed a deadline; and how often it looks for replies in any case. */
const BUSY_MS = 1000;
const BUSY_TURNS = 20;
const MOST_PROBES = 2;
/** A node that was not asked for so long has left the cluster. */
const LEFT_MS = 60_000;

const REPEATABLE: ReadonlySet<Command> = new Set(["peek", "acquire", "release", "reset", "settle", "set"]);
const servers = new WeakMap<Connection, Map<string, Server>>();

/** The server behind a connection, in the modes that are allowed. */
export function serverOf(connection: Connection, mode: Mode | "auto"): Server {
  oneOf("mode", mode, ["auto", ...MODES]);
  const known = servers.get(connection) ?? new Map<string, Server>();
  servers.set(connection, known);
  const server = known.get(mode) ?? new Server(connection, mode === "auto" ? MODES : [mode]);
  known.set(mode, server);
  return server;
}

export class NotAskedError extends UnavailableError {}

/** What is known of one node. Outside of a cluster there is one. */
class Node {
  mode: Mode | undefined;
  /** The answer to that question, while it is under way. */
  finding: Promise<void> | undefined;
  /** When it is asked again for what is better than the mode in use. */
  probeAt = Number.POSITIVE_INFINITY;
  replies = 0;
  /** Since when it gave none, although it was sent something; 0 if it has answered the last that it was sent. */
  #silentSince = 0;
  /** Why it is not asked, and until when. Then one call is sent to see whether it is back. */
  #outage: { readonly cause: Error; readonly silent: boolean; readonly until: number; tryingSince: number } | undefined;

  /** Whether it is unavailable, and has not left the cluster since. */
  get isAway(): boolean {
    return this.#outage !== undefined && performance.now() - this.#outage.until < LEFT_MS;
  }

  /** Throws if the node is not to be asked now. Returns whether it was silent, and this call finds out whether it is back. */
  enter(now: number): boolean {
    const outage = this.#outage;
    if (!outage) return false;
    if (now < outage.until || outage.tryingSince < NOT_TRYING) {
      const message = `The call was not sent: a moment ago the server was unavailable: ${reason(outage.cause)}`;
      throw new NotAskedError(message, { cause: outage.cause });
    }
    outage.tryingSince = now;
    return outage.silent;
  }

  /** There is a new connection. Outside of a cluster that shows that the server is there. */
  reconnected(cluster: boolean): void {
    this.probeAt = 0;
    if (cluster) return;
    this.#silentSince = 0;
    this.#outage = undefined;
  }

  sent(now: number): void {
    this.#silentSince ||= now;
  }

  /** A reply has come. Whatever it says but that the node cannot decide, it is there. */
  replied(unavailable: Error | undefined): void {
    this.replies++;
    this.#silentSince = 0;
    if (unavailable) this.#open(unavailable);
    else this.#outage = undefined;
  }

  /** A connection has failed. If there was a reply to a later call, that connection is not the one in use. */
  failed(cause: Error, sentAt: number): void {
    if (this.#isOld(sentAt)) return;
    if (cause instanceof LostReplyError && (this.#silentSince === 0 || sentAt < this.#silentSince)) this.left(sentAt);
    else this.#open(cause);
  }

  /** A call was given up at its deadline, which may be shorter than the node needs for a reply. */
  timedOut(now: number, sentAt: number): void {
    if (this.#isOld(sentAt)) return;
    const silence = this.#silentSince === 0 ? 0 : now - this.#silentSince;
    if (silence >= SILENCE_MS) this.#open(new Error(`no reply for ${Math.round(silence)} ms`), true);
    else this.left(sentAt);
  }

  /** The call that was to see whether the node is back has ended without an answer to that: another one may. */
  left(sentAt: number): void {
    if (this.#outage && !this.#isOld(sentAt)) this.#outage.tryingSince = NOT_TRYING;
  }

  /** Whether a call is from before the outage was noticed, or before the one that sees whether it is over. */
  #isOld(sentAt: number): boolean {
    return this.#outage !== undefined && sentAt < this.#outage.tryingSince;
  }

  #open(cause: Error, silent = false): void {
    this.#outage = { cause, silent, until: performance.now() + BREAKER_PAUSE, tryingSince: NOT_TRYING };
  }
}

const NOT_TRYING = Number.POSITIVE_INFINITY;

const idle = () => performance.eventLoopUtilization().idle;

/** A call under way, until it is answered or given up. */
class Attempt implements Route {
  readonly key: Word;
  readonly readOnly: boolean;
  readonly deadline: number;
  sent = false;
  /** Whether the caller has been told the outcome. */
  over = false;
  readonly #allowed: number;
  readonly #giveUp: () => void;
  /** For how long this process had nothing to do but to wait when the call began. */
  readonly #waited = idle();
  #timer: NodeJS.Timeout;
  #abort: AbortController | undefined;

  constructor(
    readonly node: Node,
    { name, keys }: Pick<Call, "name" | "keys">,
    timeout: number,
    giveUp: () => void,
  ) {
    this.key = keys[0];
    this.readOnly = name === "peek";
    this.deadline = performance.now() + timeout;
    this.#allowed = timeout;
    this.#giveUp = giveUp;
    this.#timer = setTimeout(() => this.#expire(), timeout);
  }

  /** Most calls need none, and none is made for them. */
  get signal(): AbortSignal {
    this.#abort ??= new AbortController();
    if (this.over) this.#abort.abort();
    return this.#abort.signal;
  }

  end(): void {
    this.over = true;
    clearTimeout(this.#timer);
  }

  /**
   * Gives the call up when this process has waited for its reply for as long as it may. What the process was busy with does not
   * count, as with a thousand requests at once, but for a second at most. Then it looks for replies for some turns of the
   * event loop, since timers come first: of each that was busy, and in which a connection was made or the node asked for its
   * form, one may find one.
   */
  #expire(): void {
    const now = performance.now();
    const left = Math.min(this.#allowed - (idle() - this.#waited), this.deadline + BUSY_MS - now);
    if (left > EARLY_MS) {
      this.#timer = setTimeout(() => this.#expire(), left);
      return;
    }
    let [turns, { replies }] = [0, this.node];
    const until = now + 500;
    const look = () => {
      if (this.over) return;
      if (turns++ < BUSY_TURNS || (this.node.replies !== replies && performance.now() < until)) {
        replies = this.node.replies;
        setImmediate(look);
        return;
      }
      this.over = true;
      this.#giveUp();
      this.#abort?.abort();
    };
    look();
  }
}

export class Server {
  readonly #connection: Connection;
  readonly #modes: readonly Mode[];
  readonly #nodes = new Map<string, Node>();
  /** Redis 6.2 has no EVALSHA_RO, and a user may lack the right. */
  #readOnlyForms = true;
  /** The form that was found last; `undefined` before the first call. */
  mode: Mode | undefined;
  #users = 0;

  constructor(connection: Connection, modes: readonly Mode[]) {
    this.#connection = connection;
    this.#modes = modes;
    connection.onReconnect?.(() => {
      for (const node of this.#nodes.values()) node.reconnected(connection.cluster === true);
    });
  }

  open(): void {
    this.#users++;
    this.#connection.open?.();
  }

  /** A limiter ends. The last one, in whatever mode, closes the connection that was opened for them. */
  close(): void {
    this.#users--;
    const all = servers.get(this.#connection)?.values() ?? [];
    if ([...all].every((server) => server.#users === 0)) this.#connection.close?.();
  }

  /** The name of the node that has a key; "" outside of a cluster. */
  nodeOf(key: Word): string {
    return this.#connection.nodeOf?.(key) ?? "";
  }

  /** Whether the node of a key, or without one any node, is taken for unavailable. */
  isAway(key?: Word): boolean {
    const all = key === undefined ? [...this.#nodes.keys()] : [this.nodeOf(key)];
    // Before the nodes of a cluster are known, they have no names.
    return all.some((name) => (name !== "" || all.length === 1) && this.#nodes.get(name)?.isAway);
  }

  /**
   * Resolves with the reply, after `timeout` milliseconds at the latest. Rejects with the server's own error if that is
   * permanent, else with an {@link UnavailableError}.
   */
  call(call: Call, timeout: number): Promise<unknown> {
    const name = this.nodeOf(call.keys[0]);
    const node = this.#nodes.get(name) ?? new Node();
    this.#nodes.set(name, node);
    const now = performance.now();
    if (node.enter(now)) this.#connection.renew?.(call.keys[0]);
    return new Promise((resolve, reject) => {
      const attempt = new Attempt(node, call, timeout, () => {
        node.timedOut(performance.now(), now);
        reject(
          attempt.sent
            ? new LostReplyError(`No reply within ${timeout} ms: the call may have been counted, or not`)
            : new UnavailableError(`The call was not sent: the server has said nothing within ${timeout} ms`),
        );
      });
      this.#ask(call, attempt)
        .finally(() => attempt.end())
        .then(resolve, reject);
    });
  }

  /**
   * Asks until there is an answer to the call, or an error that stays: the form is found out where it is not known, or
   * gone; a call is sent again while its slot is on the move, and after a lost reply if that does no harm.
   */
  async #ask(call: Call, attempt: Attempt): Promise<unknown> {
    const { node } = attempt;
    const peeks = call.name === "peek";
    let probes = 0;
    for (let pause = 4; ; ) {
      if (node.mode === undefined) await this.#found(attempt);
      // The caller may have been told by now that there is no answer.
      if (attempt.over || node.mode === undefined) throw new UnavailableError("The call was not sent in time");
      const { mode } = node;
      try {
        const reply = await this.#transmit(this.#inForm(mode, call), attempt);
        if (performance.now() >= node.probeAt) {
          node.probeAt = performance.now() + PROBE_AGAIN;
          // Whether it has got the module meanwhile. No call waits for that, and no error of it is seen: what is in use goes on.
          const find: Beside = (send) => this.#find(node, attempt.key, send);
          if (mode !== "module") this.#beside(node, attempt.key, find).catch(() => {});
        }
        return reply;
      } catch (error) {
        // Replicas do not get the script from their primary.
        if (peeks && mode === "script" && isMissing(error)) {
          const source = [this.#readOnlyForms ? "EVAL_RO" : "EVAL", script, "1", ...call.keys, "peek", ...call.words];
          return this.#transmit(source, attempt);
        }
        const isRefused = isForbidden(error) || (isGone(error) && !isMissing(error));
        if (this.#readOnlyForms && peeks && mode !== "module" && isRefused) {
          this.#readOnlyForms = false;
        } else if (isGone(error) && probes++ < MOST_PROBES) {
          // Another call may have found the new mode meanwhile.
          if (node.mode === mode) node.mode = undefined;
        } else {
          const cause = this.#mayAsk(call, error);
          // Half of the pause is random, so that callers do not come back in step.
          const wait = pause * (0.5 + Math.random() / 2);
          if (performance.now() + wait > attempt.deadline) throw cause;
          await sleep(wait);
          pause = Math.min(pause * 2, 128);
        }
      }
    }
  }

  /** Returns the error as one after which the call may be sent again, or throws it. */
  #mayAsk(call: Call, error: unknown): UnavailableError {
    if (isReply(error)) {
      const what = meaning(error.message, this.#connection.cluster);
      if (what === "probe" || what === "permanent") throw error;
      const cause = new UnavailableError(`The server cannot decide now: ${error.message}`, { cause: error });
      if (what === "retry") return cause;
      throw cause;
    }
    if (error instanceof LostReplyError && (call.repeatable || REPEATABLE.has(call.name))) return error;
    throw error;
  }

  /**
   * Finds out in which form a node takes the commands, before its first call and when a reply says that the form is gone, as after
   * a failover. A crowd of calls asks once, for a second at least: the deadline of one is not that of the others.
   */
  #found({ node, key, deadline }: Attempt): Promise<void> {
    if (!node.finding) {
      const ms = Math.max(deadline - performance.now(), BREAKER_PAUSE);
      // What was never answered keeps later calls from asking no longer than that.
      const over = () => {
        if (node.finding === finding) node.finding = undefined;
      };
      const finding = this.#beside(node, key, (send) => this.#find(node, key, send), ms, over);
      node.finding = finding;
      finding.then(over, over);
    }
    return node.finding;
  }

  async #find(node: Node, key: Word, send: Send): Promise<void> {
    const attempts: Error[] = [];
    for (const mode of this.#modes) {
      const reason = await this.#refusal(mode, key, send);
      if (reason) attempts.push(reason);
      else {
        node.mode = mode;
        this.mode = mode;
        node.probeAt = performance.now() + PROBE_AGAIN;
        if (mode === "functions") this.#beside(node, key, replaceOlder).catch(() => {});
        return;
      }
    }
    throw new UnsupportedServerError(attempts);
  }

  /** Sends a call that changes nothing in a form, with the library or the script if they are missing. Returns why the form cannot be used. */
  async #refusal(mode: Mode, key: Word, send: Send): Promise<Error | undefined> {
    try {
      const look = () => refused(send(...this.#inForm(mode, looking(key), false)));
      const error = await look();
      // A command that is forbidden is there; the call will be told so.
      if (!isMissing(error)) return mode === "module" && isForbidden(error) ? undefined : error;
      if (mode === "script") return await refused(send("EVAL", script, "1", key, "peek", ...LOOKING));
      try {
        await send("FUNCTION", "LOAD", library);
      } catch (error) {
        if (!isReply(error, /already exists/i)) throw error;
        await replaceOlder(send);
      }
      return await look();
    } catch (error) {
      if (error instanceof UnavailableError && !(error instanceof LostReplyError)) throw error;
      if (!isReply(error)) throw new UnavailableError(`The call was not sent: ${reason(error)}`, { cause: error });
      if (meaning(error.message) !== "unavailable") return error;
      throw new UnavailableError(`The server cannot decide now: ${error.message}`, { cause: error });
    }
  }

  /** Sends commands to the node of a key, beside the calls. */
  #beside(node: Node, key: Word, work: Beside, ms = BREAKER_PAUSE, giveUp = () => {}): Promise<void> {
    const attempt = new Attempt(node, { name: "set", keys: [key] }, ms, giveUp);
    const send: Send = (...command) => this.#transmit(command, attempt);
    return work(send).finally(() => attempt.end());
  }

  /** Sends a command once, and tells the node's state what came of it, also where the caller has left. */
  async #transmit(command: readonly Word[], attempt: Attempt): Promise<unknown> {
    const { node } = attempt;
    const sentAt = performance.now();
    node.sent(sentAt);
    attempt.sent = true;
    try {
      const reply = await this.#connection.send(command, attempt);
      node.replied(undefined);
      return reply;
    } catch (error) {
      if (error instanceof TypeError || error instanceof RangeError) {
        node.left(sentAt);
        throw error;
      }
      if (isReply(error)) {
        node.replied(meaning(error.message, this.#connection.cluster) === "unavailable" ? error : undefined);
        throw error;
      }
      const cause = lost(error);
      const now = performance.now();
      // What a client gives up at the deadline is late, and no failure of a connection.
      if (now >= attempt.deadline - 1) node.timedOut(now, sentAt);
      else node.failed(cause, sentAt);
      throw cause;
    }
  }

  #inForm(mode: Mode, { name, keys, words }: Call, readOnly = this.#readOnlyForms): Word[] {
    const count = String(keys.length);
    const form = name === "peek" && readOnly ? "_RO" : "";
    if (name === "set") return ["SET", ...keys, ...words];
    if (mode === "module") return [`RL.${name.toUpperCase()}`, ...(name === "all" ? [count] : []), ...keys, ...words];
    if (mode === "functions") return [`FCALL${form}`, `rl_${name}`, count, ...keys, ...words];
    return [`EVALSHA${form}`, scriptSha, count, ...keys, name, ...words];
  }
}

type Send = (...command: Word[]) => Promise<unknown>;
type Beside = (send: Send) => Promise<void>;

/** A call that every server takes which takes any, and that changes nothing. */
const LOOKING = ["SLIDING", "1", "1", "COST", "0"];
const looking = (key: Word): Call => ({ name: "peek", keys: [key], words: LOOKING });

/** The error that says that a form cannot be used; any other reply, an error of the key too, shows that it can. */
async function refused(sent: Promise<unknown>): Promise<Error | undefined> {
  try {
    await sent;
  } catch (error) {
    if (!isReply(error) || meaning(error.message) === "unavailable") throw error;
    if (isGone(error) || isForbidden(error)) return error;
  }
  return undefined;
}

/** Replaces a library of ours that is older than this package's. A newer one, or another's, is left alone. */
async function replaceOlder(send: Send): Promise<void> {
  const list = JSON.stringify(await send("FUNCTION", "LIST", "LIBRARYNAME", "rl", "WITHCODE"));
  const older = list.includes("redis-rl") && libraryVersion(list) < libraryVersion(library);
  if (older) await send("FUNCTION", "LOAD", "REPLACE", library);
}

/** The version that a library says it has; 0 for one from before there were versions. */
function libraryVersion(code: string): number {
  return Number(/(?:^|\n|\\n)-- Version (\d+)\b/.exec(code)?.[1] ?? 0);
}

/** An error of a connection for the caller: one that was not sent, or one whose reply was lost. */
function lost(error: unknown): UnavailableError {
  if (error instanceof UnavailableError) return error;
  const message = `The reply was lost, and the call may have been counted, or not: ${reason(error)}`;
  return new LostReplyError(message, { cause: error });
}

/** Whether a reply says that the server does not take this form (any more). */
const isGone = (error: unknown) => isReply(error) && meaning(error.message) === "probe";
/** Whether it takes the form, and only lacks the library or the script. */
const isMissing = (error: unknown) => isReply(error, /function not found|NOSCRIPT/i);
/** Whether the user may not run the command. A key that is forbidden is forbidden in every form. */
const isForbidden = (error: unknown) => isReply(error, /^NOPERM.*command/i);
