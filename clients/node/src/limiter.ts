/** The limiter: every command of redis-rl as a method. */

import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { countdown, duration, holding, integer, known, oneOf } from "./checks.js";
import { type Connection, connect, type RedisClient } from "./connection.js";
import { LIMITER, OPTIONS, POLICIES, WAITING } from "./defaults.js";
import { type Denial, DenialCache, figuresNow, keptOf } from "./denials.js";
import { LostReplyError, UnavailableError } from "./errors.js";
import { checkedWord, memoryKey, type Word } from "./keys.js";
import { Lease } from "./lease.js";
import { LocalLimits } from "./local.js";
import type {
  AcquireOptions,
  CallOptions,
  Demand,
  HitOptions,
  HoldOptions,
  LimiterOptions,
  PeekOptions,
  RefundOptions,
  ReservedDemand,
  ReserveOptions,
  Statistics,
  TurnOptions,
  WaitOptions,
} from "./options.js";
import { Outage } from "./outage.js";
import { type Part, Reservation, reserving, type Work } from "./reservation.js";
import { DeniedError, type Refund, type Result, readInteger, readIntegers, readResult, resultOf } from "./result.js";
import type { LeaseRule, QuotaRule, Rule, TurnRule, UnitRule } from "./rules.js";
import { type Call, type Command, EARLY_MS, type Mode, type Server, serverOf } from "./server.js";
import { pauseFor, Queue, unlessLeft } from "./waiting.js";
import { type Asked, type Asking, checked, commandOf, countersOf, inPeriod, named, ofKind, wordsOf } from "./words.js";

/**
 * Limits over one client of node-redis or ioredis, a cluster client too.
 *
 * Calls reject with the server's error if it is permanent (`WRONGTYPE`, `NOPERM`, …), with {@link UnavailableError} if
 * the server cannot decide now, with its subclass {@link LostReplyError} if the call may have been counted, and with
 * {@link UnsupportedServerError} if the server takes the commands in no form.
 */
export class Limiter {
  readonly connection: Connection;
  /** What log lines and the hook call the limiter. */
  readonly name: string;
  /** For how many milliseconds a call waits for its reply. */
  readonly timeout: number;
  readonly #options: LimiterOptions & Required<Pick<LimiterOptions, "prefix" | "logger">>;
  readonly #server: Server;
  readonly #denials = new DenialCache();
  readonly #local: LocalLimits;
  readonly #outage: Outage;
  readonly #queue = new Queue();
  readonly #statistics = { allowed: 0, denied: 0, deniedFromMemory: 0, unavailable: 0 };
  #closed = false;

  constructor(client: RedisClient, options: LimiterOptions = {}) {
    known("new Limiter()", options, OPTIONS);
    const { prefix = LIMITER.prefix, mode = LIMITER.mode, timeout = LIMITER.timeout, processes = 1 } = options;
    const { logger = console, name = prefix || LIMITER.name } = options;
    if (typeof prefix !== "string") throw new TypeError(`prefix must be a string, not ${String(prefix)}`);
    this.timeout = duration("timeout", timeout);
    oneOf("whenUnavailable", options.whenUnavailable, POLICIES);
    this.#local = new LocalLimits(integer("processes", processes, 1));
    this.connection = connect(client);
    this.#server = serverOf(this.connection, mode);
    this.#server.open();
    this.name = name;
    if (typeof logger.warn !== "function") throw new TypeError("the logger needs a function warn(line)");
    this.#options = { ...options, prefix, logger };
    this.#outage = new Outage(this.#server, (line) => this.warn(line));
  }

  /** How the commands are sent; `undefined` before the first call. */
  get mode(): Mode | undefined {
    return this.#server.mode;
  }

  /** How many decisions this limiter made since it was made. */
  get statistics(): Statistics {
    return { ...this.#statistics };
  }

  /**
   * Ends the limiter: later calls reject. The client stays open, and other limiters over it go on. With the last of them ends
   * the connection that was opened beside it.
   */
  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#server.close();
  }

  /**
   * Decides on a request, and counts it if it fits: `RL.SLIDING`, `RL.FIXED` or `RL.THROTTLE`. With a lease rule it is
   * {@link acquire}.
   *
   * ```ts
   * const result = await limiter.hit("user:7", sliding("100/minute"));
   * if (!result.allowed) return reply.code(429).headers(result.headers()).send(result.problem());
   * ```
   */
  hit<R extends Rule>(key: Word, rule: R, options: HitOptions<R> = {} as HitOptions<R>): Promise<Result> {
    const { cost, force, holder, signal, timeout } = options as AnyOptions;
    return unlessLeft(signal, () => this.ask([{ key, rule, cost, force, holder }], { timeout }));
  }

  /** Says what {@link hit} would answer, and changes nothing: `RL.PEEK`. */
  async peek<R extends Rule>(key: Word, rule: R, options: PeekOptions<R> = {} as PeekOptions<R>): Promise<Result> {
    const { cost, holder, signal, timeout } = options as AnyOptions;
    checked<Rule>(rule);
    return unlessLeft(signal, () => this.ask([{ key, rule, cost, holder }], { timeout, peek: true }));
  }

  /** Gives back what the same rule took: `RL.REFUND`. What lies in a window that is over is not given back. */
  async refund(key: Word, rule: QuotaRule, options: RefundOptions = {}): Promise<Refund> {
    const { cost, atMs } = options;
    if (checked<Rule>(rule).kind === "lease") throw new TypeError("a lease is not refunded but released");
    if (atMs !== undefined) integer("atMs", atMs, 0);
    const behind = named(rule, { cost, at: atMs });
    if (atMs !== undefined) behind.push("AT", String(atMs));
    const reply = await this.#giveBack("refund", key, behind, options);
    const [refunded, used, ttl] = readIntegers(reply, 3) as [number, number, number];
    return { refunded, used, ttl };
  }

  /** Gives a key its whole quota back: `RL.RESET`. A fixed rule is needed to find its counters and holds. Resolves with the number of keys removed. */
  async reset(key: Word, rule?: Rule, options: CallOptions = {}): Promise<number> {
    const behind = rule === undefined ? [] : countersOf(checked(rule));
    return readInteger(await this.#giveBack("reset", key, behind, options), "a number of keys");
  }

  /**
   * Takes a turn: counts a request that does not fit now but will within `within` milliseconds (an hour at most) at the time
   * at which it will. `waitMs` of the result says how long to wait from now, without asking again. For those who schedule:
   * {@link wait} sleeps, too. {@link refund} with the result's `atMs` gives a turn back.
   */
  async turn(key: Word, rule: TurnRule, within: number, options: TurnOptions = {}): Promise<Result> {
    ofKind("the rule of a turn", rule, "sliding", "throttle");
    const { longestTurn: most } = WAITING;
    if (!(within >= 0 && within <= most)) {
      throw new RangeError(`within is a number of milliseconds from 0 to ${most}, an hour, and not ${String(within)}`);
    }
    const { cost, signal, timeout } = options;
    const asking = { timeout, within: Math.floor(within), whenUnavailable: "closed" } as const;
    const giveBack = (taken: Result) => this.#giveTurnBack(key, rule, cost, taken);
    return unlessLeft(signal, () => this.ask([{ key, rule, cost }], asking), giveBack);
  }

  /**
   * Waits until the request is allowed: in a sliding rule or a throttle for its {@link turn}, in a lease for a place as
   * {@link hold} does, and else for the exact time after which it fits. Resolves with the denial at once where that is longer
   * than the time that is left, and if the request never fits. While the server is unavailable it goes on until its time is over.
   */
  async wait<R extends Rule>(key: Word, rule: R, options: WaitOptions<R> = {} as WaitOptions<R>): Promise<Result> {
    const { cost, holder, signal, ...given } = options as WaitOptions<LeaseRule> & WaitOptions;
    const { timeout = Number.POSITIVE_INFINITY } = given;
    if (checked<Rule>(rule).kind === "lease") {
      const place = { holder: holder ?? (rule as LeaseRule).holder ?? randomUUID(), signal, timeout };
      return (await this.#placed(key, rule as LeaseRule, place)).result;
    }
    const takesTurns = rule.kind === "sliding" || rule.kind === "throttle";
    if (!takesTurns) ofKind("the rule of a wait", rule, "fixed", "calendar");
    const left = countdown(timeout);
    const ask = (ms: number) => {
      const within = Math.min(Math.max(0, left()), WAITING.longestTurn);
      const turn = { timeout: ms, ...(cost !== undefined && { cost }), ...(signal && { signal }) };
      if (takesTurns) return this.turn(key, rule as TurnRule, within, turn);
      return unlessLeft(signal, () => this.ask([{ key, rule, cost }], { timeout: ms, whenUnavailable: "closed" }));
    };
    const result = await this.#patiently(ask, left, signal, async ({ retryAfterMs }) => {
      if (retryAfterMs === undefined || retryAfterMs > left()) return false;
      await pauseFor(retryAfterMs, signal);
      return true;
    });
    await pauseFor(result.waitMs, signal).catch((reason) => {
      void this.#giveTurnBack(key, rule as TurnRule, cost, result);
      throw reason;
    });
    return result;
  }

  /**
   * Takes or renews a lease: `RL.ACQUIRE`. The result has the `holder`, a random UUID where none is given. {@link hold}
   * does the same and renews it.
   */
  async acquire(key: Word, rule: LeaseRule, options: AcquireOptions = {}): Promise<Result> {
    const { signal, timeout } = options;
    const known = options.holder ?? ofKind("a lease", rule, "lease").holder;
    const holder = known ?? randomUUID();
    // Nobody else knows the name that was made here. With one of the caller's own it may have been a renewal.
    const giveBack = () => (known === undefined ? this.releaseLeft(key, rule, holder) : undefined);
    return unlessLeft(signal, () => this.ask([{ key, rule, holder }], { timeout, lost: giveBack }), giveBack);
  }

  /** Ends leases: `RL.RELEASE`. Resolves with how many there were; releasing twice is no error. */
  async release(key: Word, ...holders: [Word, ...Word[]]): Promise<number> {
    if (holders.length === 0) throw new TypeError("release needs a holder");
    for (const holder of holders) holding(holder);
    const released = readInteger(await this.#giveBack("release", key, holders, {}), "a number of leases");
    this.#queue.free(memoryKey(key));
    return released;
  }

  /**
   * One decision over 1 to 64 keys: `RL.ALL`. Allowed only if every rule has room; otherwise nothing is consumed
   * anywhere. In a cluster all keys need the same hash tag, as in `{org7}:rpm` and `{org7}:tpm`.
   */
  async all<const D extends readonly Demand[]>(
    demands: D & (D extends readonly [] ? never : unknown),
    options: CallOptions = {},
  ): Promise<Result> {
    const list = demands as readonly Demand[];
    checkedDemands(list);
    const { signal, timeout } = options;
    return unlessLeft(signal, () => this.ask(list, { timeout, all: true, whenUnavailable: "closed" }));
  }

  /**
   * Takes a lease and renews it until it is released; waits for a place for `timeout` milliseconds. With a function it is
   * held while that runs, and the function gets the lease, whose `signal` says when it is lost.
   *
   * ```ts
   * await limiter.hold("jobs", rule, async (held) => work({ signal: held.signal }));
   * ```
   *
   * @throws DeniedError if as many leases are held as the rule has.
   */
  async hold(key: Word, rule: LeaseRule, options?: HoldOptions): Promise<Lease>;
  async hold<T>(key: Word, rule: LeaseRule, work: (lease: Lease) => Promise<T> | T, options?: HoldOptions): Promise<T>;
  async hold<T>(
    key: Word,
    rule: LeaseRule,
    work?: ((lease: Lease) => Promise<T> | T) | HoldOptions,
    options: HoldOptions = {},
  ): Promise<T | Lease> {
    const { timeout = 0, signal, renew = true, ...given } = typeof work === "function" ? options : (work ?? {});
    const holder = given.holder ?? ofKind("a lease", rule, "lease").holder ?? randomUUID();
    const { result, takenAt } = await this.#placed(key, rule, { holder, signal, timeout });
    if (!result.allowed) throw new DeniedError(result);
    const held = new Lease(this, key, rule, holder, { renew, takenAt });
    if (typeof work !== "function") return held;
    try {
      return await work(held);
    } finally {
      await held.end();
    }
  }

  /**
   * Reserves units for work whose cost is known when it is over, such as the tokens of an answer. While the work lasts they
   * are held, and renewed; then {@link Reservation.settle} puts the real number in their place. If the work fails, they are
   * given back; if this process dies, by the next reservation or settlement at the key after the end of their lease.
   *
   * ```ts
   * const answer = await limiter.reserve("user:7", sliding("200_000/minute"), 1800, async (reservation) => {
   *   const answer = await model.complete(prompt);
   *   await reservation.settle(answer.usage.totalTokens);
   *   return answer;
   * });
   * ```
   *
   * Without work it resolves with a reservation that is not renewed.
   *
   * @throws DeniedError if they do not fit.
   */
  async reserve<T>(key: Word, rule: UnitRule, units: number, work: Work<T>, options?: ReserveOptions): Promise<T>;
  async reserve(key: Word, rule: UnitRule, units: number, options?: ReserveOptions): Promise<Reservation>;
  async reserve<T>(
    key: Word,
    rule: UnitRule,
    units: number,
    work?: Work<T> | ReserveOptions,
    options?: ReserveOptions,
  ): Promise<T | Reservation> {
    return this.#reserved([{ key, rule, reserve: integer("units", units, 1) }], work, options, {});
  }

  /**
   * One decision over several keys, of which those with `reserve` hold units, as {@link reserve} does: a request a minute, and
   * tokens whose number is known later.
   */
  async reserveAll<T>(demands: readonly ReservedDemand[], work: Work<T>, options?: ReserveOptions): Promise<T>;
  async reserveAll(demands: readonly ReservedDemand[], options?: ReserveOptions): Promise<Reservation>;
  async reserveAll<T>(
    demands: readonly ReservedDemand[],
    work?: Work<T> | ReserveOptions,
    options?: ReserveOptions,
  ): Promise<T | Reservation> {
    checkedDemands(demands);
    return this.#reserved(demands, work, options, { all: true, whenUnavailable: "closed" });
  }

  /** The whole key that a name stands for: with the prefixes of client and limiter. */
  keyOf(name: Word): Word {
    checkedWord("a key", name);
    const prefix = this.connection.keyPrefix + this.#options.prefix;
    if (prefix === "") return name;
    return typeof name === "string" ? prefix + name : Buffer.concat([Buffer.from(prefix), name]);
  }

  /**
   * One decision on one key or several, as an adapter asks for it: the server's, unless a denial is remembered; where the server
   * is unavailable, that of the policy. Where one of several is remembered to deny, the result is of that one alone. @internal
   */
  async ask(asked: readonly Asked[], asking: Asking): Promise<Result> {
    const start = performance.now();
    const { denyCache = false, timeout = this.timeout, peek = false, all = asked.length > 1 } = asking;
    const [{ rule: first }] = asked as readonly [Asked, ...Asked[]];
    const command = all ? "all" : peek ? "peek" : commandOf(first);
    const kept = denyCache && !peek ? keptOf(asked) : [];
    const doubts: Denial[] = [];
    // What came after this call had begun is what it would have been told, and is believed for all of its wait.
    const remembered = (since = Number.POSITIVE_INFINITY) => {
      for (const { id, rule, cost, index } of kept) {
        const now = performance.now();
        const denial = this.#denials.find(id, rule, cost, now);
        if (denial && now >= denial.until && denial.receivedAt < since) doubts.push(denial);
        else if (denial) {
          this.#statistics.deniedFromMemory++;
          return this.#decided(command, asked, resultOf(rule, figuresNow(denial, now), "memory", { index }), start);
        }
      }
      return undefined;
    };
    const denied = remembered();
    if (denied) return denied;
    const [doubted] = doubts;
    const before = doubted?.asking;
    try {
      let left = timeout;
      if (before) {
        // By then it is remembered what the one before was told, which waits for the same reply.
        await before;
        const known = remembered(start);
        if (known) return known;
        left = Math.max(WAITING.lastCallShare * timeout, start + timeout - performance.now());
      }
      const deciding = this.#send(command, asked, asking, left);
      if (doubted && !before) doubted.asking = deciding;
      const result = await deciding;
      for (const { id, rule, cost, index } of kept) {
        const windows = all ? result.each.slice(index, index + 1) : result.each;
        if (result.allowed) this.#denials.refute(id, rule, cost);
        else if (windows.some(({ allowed }) => !allowed)) this.#denials.remember(id, rule, cost, windows, start);
      }
      return this.#decided(command, asked, result, start);
    } catch (error) {
      if (!(error instanceof UnavailableError)) throw error;
      // Of a crowd that is larger than the process can serve in time, others may have been denied meanwhile.
      const known = remembered(start);
      if (known) return known;
      const chosen = asking.whenUnavailable ?? this.#options.whenUnavailable ?? asking.habit ?? "closed";
      const policy = command === "acquire" || (peek && first.kind === "lease") ? "closed" : chosen;
      if (policy === "closed") throw error;
      return this.#decided(command, asked, this.#local.result(policy, asked, all, peek), start);
    } finally {
      if (doubted && !before) doubted.asking = undefined;
    }
  }

  /** Asks the server, and reads what it says. */
  async #send(command: Command, asked: readonly Asked[], asking: Asking, timeout: number): Promise<Result> {
    const { hold, lost, within } = asking;
    const call = { name: command, keys: asked.map(({ key }) => key) as [Word], repeatable: hold !== undefined };
    const send = (at: number | undefined, ms: number) =>
      this.#call({ ...call, words: wordsOf(command, asked, asking, at) }, ms);
    const reply = await inPeriod(asked, send, timeout, hold).catch((error) => {
      if (error instanceof LostReplyError) lost?.();
      throw error;
    });
    return readResult(command, asked, reply, within !== undefined);
  }

  /** Gives a counter another value and life: what rate-limiter-flexible calls `set` and `block`. @internal */
  async setCounter(counter: Word, value: number, ms: number, timeout: number | undefined): Promise<void> {
    await this.#call({ name: "set", keys: [counter], words: [String(value), "PX", String(ms)] }, timeout);
  }

  warn(line: string): void {
    this.#options.logger.warn(`redis-rl (${this.name}): ${line}`);
  }

  /** Gives something back at a key, and forgets the denial there. */
  async #giveBack(
    name: Command,
    key: Word,
    words: readonly Word[],
    { signal, timeout }: CallOptions,
  ): Promise<unknown> {
    const id = memoryKey(key);
    this.#denials.forget(id);
    try {
      return await unlessLeft(signal, () => this.#call({ name, keys: [key], words }, timeout));
    } finally {
      // A denial that came while this call was under way is from before it.
      this.#denials.forget(id);
    }
  }

  /** For a caller that waits for its turn no longer. What cannot be given back now stays unused. */
  async #giveTurnBack(key: Word, rule: TurnRule, cost: number | undefined, { allowed, atMs }: Result): Promise<void> {
    if (allowed) await this.refund(key, rule, { atMs, ...(cost !== undefined && { cost }) }).catch(() => {});
  }

  /**
   * Asks until the answer is that the request is allowed, or `again` says that it is not asked again: it gets the denial, and
   * sleeps. The last call may have little time, and then says nothing that was not known before if it fails. What was known
   * before an outage is no answer after it.
   */
  async #patiently(
    ask: (ms: number) => Promise<Result>,
    left: () => number,
    signal: AbortSignal | undefined,
    again: (denied: Result) => Promise<boolean>,
    known: { denied: Result | undefined } = { denied: undefined },
  ): Promise<Result> {
    for (;;) {
      try {
        const result = await ask(Math.max(WAITING.lastCallShare * this.timeout, Math.min(this.timeout, left())));
        known.denied = result.allowed ? undefined : result;
        if (result.allowed || !(await again(result))) return result;
      } catch (error) {
        if (!(error instanceof UnavailableError)) throw error;
        // The last call has all the time that is left, and may be given up a little before.
        if (left() <= EARLY_MS) {
          if (known.denied) return known.denied;
          throw error;
        }
        known.denied = undefined;
        await pauseFor(Math.min(WAITING.outagePoll, left()), signal);
      }
    }
  }

  /** Takes a place of a lease, for which the callers of this process wait in the order in which they came. */
  async #placed(
    key: Word,
    rule: LeaseRule,
    { holder, signal, timeout }: { holder: Word; signal: AbortSignal | undefined; timeout: number },
  ): Promise<{ result: Result; takenAt: number }> {
    const id = memoryKey(key);
    const left = countdown(timeout);
    const giveBack = () => this.releaseLeft(key, rule, holder);
    let place: Awaited<ReturnType<Queue["join"]>> | undefined;
    let poll: number = WAITING.firstPoll;
    let [takenAt, isUnknown] = [0, false];
    try {
      if (timeout > 0) place = await this.#queue.join(id, left(), signal);
      if (place?.isFirst === false && place.line.denied) return { result: place.line.denied, takenAt };
      const ask = (ms: number) => {
        takenAt = performance.now();
        // A caller that does not wait asks once, as any other call.
        const lost = () => {
          isUnknown = true;
          if (signal?.aborted) void giveBack();
        };
        const asking = { timeout: timeout > 0 ? ms : this.timeout, lost };
        return unlessLeft(signal, () => this.ask([{ key, rule, holder }], asking), giveBack);
      };
      const again = async ({ retryAfterMs }: Result) => {
        if (retryAfterMs === undefined || left() <= 0) return false;
        // A lease may be released at any time. Half of the pause is random, so that not all processes ask at once.
        const pause = Math.min(retryAfterMs, left(), poll * (0.5 + Math.random() / 2));
        const isFreed = await place?.line.pause(pause, signal);
        poll = isFreed ? WAITING.firstPoll : Math.min(2 * poll, WAITING.longestPoll);
        return true;
      };
      const result = await this.#patiently(ask, left, signal, again, place?.line);
      isUnknown &&= !result.allowed;
      return { result, takenAt };
    } finally {
      // A call without reply may have taken a place.
      if (isUnknown) void giveBack();
      place?.leave();
    }
  }

  async #call({ keys: names, ...call }: Call, timeout: number | undefined): Promise<unknown> {
    if (this.#closed) throw new TypeError("The limiter is closed");
    const keys = names.map((key) => this.keyOf(key)) as [Word, ...Word[]];
    const ms = timeout === undefined ? this.timeout : duration("timeout", timeout);
    try {
      const reply = await this.#server.call({ ...call, keys }, ms);
      this.#outage.answered();
      return reply;
    } catch (error) {
      if (error instanceof UnavailableError) {
        this.#statistics.unavailable++;
        this.#outage.failed(keys[0], error);
      }
      throw error;
    }
  }

  #decided(command: Command, asked: readonly Asked[], result: Result, start: number): Result {
    const { allowed, source } = result;
    if (command !== "peek") this.#statistics[allowed ? "allowed" : "denied"]++;
    const { onDecision } = this.#options;
    const [{ key, rule }] = asked as readonly [Asked, ...Asked[]];
    const tell = async () => {
      const keys = asked.map(({ key }) => key);
      const durationMs = performance.now() - start;
      await onDecision?.({ limiter: this.name, command, key, keys, rule, allowed, source, durationMs });
    };
    if (onDecision) tell().catch((error) => this.warn(`onDecision failed: ${String(error)}`));
    return result;
  }

  async #reserved<T>(
    demands: readonly Asked[],
    given: Work<T> | ReserveOptions | undefined,
    options: ReserveOptions | undefined,
    how: Asking,
  ): Promise<T | Reservation> {
    const work = typeof given === "function" ? given : undefined;
    const { hold, signal, timeout = this.timeout } = reserving(typeof given === "function" ? options : given);
    const parts = demands.flatMap(({ key, rule, reserve }) => {
      if (reserve === undefined) return [];
      const reserved = ofKind("the rule of a reservation", rule, "sliding", "fixed", "calendar");
      return [{ key, rule: reserved, units: integer("reserve", reserve, 1) }];
    });
    if (parts.length === 0) throw new TypeError("nothing is reserved: no rule has reserve");
    const settle = ({ key, rule, units }: Part, actual: number) => {
      const behind = [...named(rule, { cost: units, hold, at: hold.at }), "ACTUAL", String(actual)];
      return this.#giveBack("settle", key, behind, { timeout });
    };
    // What was sent may arrive yet; a holder that is settled by then gets nothing.
    const giveBack = () => Promise.all(parts.map((part) => settle(part, 0))).catch(() => {});
    const asking = { ...how, hold, timeout };
    const takenAt = performance.now();
    const result = await unlessLeft(signal, () => this.ask(demands, { ...asking, lost: giveBack }), giveBack);
    if (!result.allowed) throw new DeniedError(result);
    hold.renews = true;
    // An outage is answered as the user chose; what it lets through is neither renewed nor settled.
    const renew = () => this.ask(demands, { ...asking, whenUnavailable: "closed" });
    const warn = (line: string) => this.warn(line);
    const keeper = { settle, renew, warn, timeout, takenAt, renews: work !== undefined };
    const reservation = new Reservation(keeper, parts, result, hold);
    return work ? reservation.during(work) : reservation;
  }

  /** Releases what nobody else knows of, however long the server is away; the lease ends by itself. @internal */
  async releaseLeft(key: Word, rule: LeaseRule, holder: Word): Promise<void> {
    const left = countdown(rule.leaseMs);
    // The call that took it may be on its way still, on another connection.
    for (let released = 0; released < 2 && left() > 0; ) {
      try {
        if ((await this.release(key, holder)) === 1) return;
        released++;
      } catch (error) {
        // Of a limiter that is closed, or a server that does not permit it, no later call does more.
        if (!(error instanceof UnavailableError)) return;
      }
      await sleep(Math.min(1000, left()), undefined, { ref: false });
    }
  }
}

/** What a request may say, whatever its rule. */
type AnyOptions = Pick<Asked, "cost" | "force" | "holder"> & CallOptions;

function checkedDemands(list: readonly Demand[]): void {
  if (!Array.isArray(list as unknown)) throw new TypeError(`all takes an array of { key, rule }, not ${String(list)}`);
  if (list.length < 1 || list.length > 64) throw new RangeError(`all takes 1 to 64 keys, not ${list.length}`);
  for (const demand of list) checked(demand?.rule);
}
