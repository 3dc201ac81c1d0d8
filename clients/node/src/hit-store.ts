/** The store that express-rate-limit and hono-rate-limiter ask: both have the same interface. */

import { asking, dynamicPolicy, identified, keysOf, policyOf, ruleOf, type StoreOptions } from "./adapter.js";
import type { Asking, Limiter } from "./limiter.js";
import type { Result } from "./result.js";
import type { FixedRule, SlidingRule } from "./rules.js";

export interface HitStoreOptions extends StoreOptions {
  /**
   * The limit of a key, where the middleware's `limit` is a function: of that one the store would learn nothing before it
   * counts. See the README.
   */
  readonly limit?: (key: string) => number | Promise<number>;
}

/** What a store is told by the middleware. */
export interface HitStoreSettings {
  readonly windowMs: number;
  // biome-ignore lint/suspicious/noExplicitAny: the functions of the two frameworks take different arguments.
  readonly limit: number | ((...args: any[]) => unknown);
  readonly skipFailedRequests?: boolean | undefined;
  /** The name of the policy, of express-rate-limit. */
  readonly identifier?: unknown;
}

export interface Hits {
  totalHits: number;
  resetTime: Date;
}

/** What `init` makes of the settings. */
interface Ready {
  readonly windowMs: number;
  readonly keyOf: (key: string) => string;
  readonly ruleOf: (key: string) => SlidingRule | FixedRule | Promise<SlidingRule | FixedRule>;
  /** A sliding rule does not count what it denies. */
  readonly countsDenials: boolean;
  readonly takesDenialsBack: boolean;
}

/** For how long a denial may be on its way until the middleware takes it back. */
const DENIAL_MS = 10_000;

export class HitStore {
  /** Keys are shared by all processes on the same server. */
  readonly localKeys = false;
  readonly prefix: string;
  readonly #limiter: Limiter;
  readonly #options: HitStoreOptions;
  readonly #asking: Asking;
  /** Denied requests that were not counted, and that the middleware takes back as well, by key. */
  readonly #denied = new Map<string, { count: number; until: number }>();
  #ready: Ready | undefined;

  constructor(limiter: Limiter, options: HitStoreOptions = {}) {
    this.#limiter = limiter;
    this.#options = options;
    this.#asking = { ...asking(limiter, options), short: true };
    this.prefix = options.prefix ?? "rl:";
  }

  /** Called by the middleware with its settings. */
  init({ windowMs, limit, skipFailedRequests = false, identifier }: HitStoreSettings): void {
    const { algorithm = "sliding", limit: limitOf } = this.#options;
    const name = this.#options.name ?? (typeof identifier === "string" ? identifier : undefined);
    const common = { windowMs, takesDenialsBack: skipFailedRequests };
    if (typeof limit === "number") {
      const rule = ruleOf(algorithm, limit, windowMs);
      const keyOf = keysOf(this.prefix, name ?? policyOf(rule));
      this.#ready = { ...common, keyOf, ruleOf: () => rule, countsDenials: algorithm === "fixed" };
    } else if (limitOf) {
      const keyOf = keysOf(this.prefix, name ?? dynamicPolicy(algorithm, windowMs));
      const ofKey = async (key: string) => ruleOf(algorithm, await limitOf(key), windowMs);
      this.#ready = { ...common, keyOf, ruleOf: ofKey, countsDenials: algorithm === "fixed" };
    } else {
      // The middleware calls its function after the store has counted. A counter takes denials in one small number, a
      // sliding log would grow with each.
      const rule = ruleOf("fixed", Number.MAX_SAFE_INTEGER, windowMs);
      const keyOf = keysOf(this.prefix, name ?? dynamicPolicy("fixed", windowMs));
      this.#ready = { ...common, keyOf, ruleOf: () => rule, countsDenials: true };
    }
  }

  /** Counts a request. */
  async increment(key: string): Promise<Hits> {
    const { windowMs, keyOf, ruleOf, countsDenials, takesDenialsBack } = this.#settings();
    if (!identified(key, this.#options.withoutIdentity)) {
      return { totalHits: 1, resetTime: new Date(Date.now() + windowMs) };
    }
    const rule = ruleOf(key);
    const asked = rule instanceof Promise ? await rule : rule;
    const result = await this.#limiter.ask(keyOf(String(key)), asked, this.#asking);
    // A denial is a total above the limit, whether it was counted or not.
    const counted = result.allowed || (countsDenials && result.used > result.limit);
    if (takesDenialsBack && !counted) this.#denial(key);
    return hits(result, result.allowed ? result.used : Math.max(result.used, result.limit + 1));
  }

  /** Takes the newest request back. Never rejects: the middleware does not await it. */
  async decrement(key: string): Promise<void> {
    try {
      const { keyOf, ruleOf } = this.#settings();
      if (!identified(key, "allow") || this.#wasDenial(key)) return;
      await this.#limiter.refund(keyOf(key), await ruleOf(key));
    } catch (error) {
      this.#limiter.warn(`a request could not be taken back: ${(error as Error).message}`);
    }
  }

  /** Says how many requests there are and counts none. */
  async get(key: string): Promise<Hits | undefined> {
    const { keyOf, ruleOf } = this.#settings();
    const result = await this.#limiter.peek(keyOf(key), await ruleOf(key), { cost: 0 });
    return result.used === 0 ? undefined : hits(result, result.used);
  }

  /** Gives a key its whole quota back. */
  async resetKey(key: string): Promise<void> {
    const { keyOf, ruleOf } = this.#settings();
    await this.#limiter.reset(keyOf(key), await ruleOf(key));
  }

  #settings(): Ready {
    if (!this.#ready) throw new Error("the middleware has not called init yet");
    return this.#ready;
  }

  #denial(key: string): void {
    const now = performance.now();
    const known = this.#denied.get(key);
    const count = known && known.until > now ? known.count + 1 : 1;
    // The latest is the last, and those at the front may be over.
    this.#denied.delete(key);
    this.#denied.set(key, { count, until: now + DENIAL_MS });
    for (const [oldest, { until }] of this.#denied) {
      if (until > now) break;
      this.#denied.delete(oldest);
    }
  }

  #wasDenial(key: string): boolean {
    const known = this.#denied.get(key);
    if (!known || known.until <= performance.now()) return false;
    if (--known.count === 0) this.#denied.delete(key);
    return true;
  }
}

/** `resetTime` is by the clock of this process, against which the middleware holds it. */
function hits(result: Result, totalHits: number): Hits {
  const ms = (result.allowed ? result.resetAfterMs : result.retryAfterMs) ?? result.windowMs;
  return { totalHits, resetTime: new Date(Date.now() + ms) };
}
