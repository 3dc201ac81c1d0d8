/** A limiter for rate-limiter-flexible, version 10 or 11. */

import { type IRateLimiterStoreOptions, RateLimiterRes, type RateLimiterStoreAbstract } from "rate-limiter-flexible";
// @ts-expect-error It is not exported from the index, and has no declarations of its own.
import untyped from "rate-limiter-flexible/lib/RateLimiterStoreAbstract.js";
import { type AdapterOptions, type Algorithm, asking, identified, ruleOf } from "./adapter.js";
import { LONGEST_MS, seconds } from "./checks.js";
import { UnavailableError } from "./errors.js";
import { adapterKey } from "./identity.js";
import type { Limiter } from "./limiter.js";
import type { Result } from "./result.js";
import type { FixedRule, SlidingRule } from "./rules.js";
import { describe } from "./words.js";

const Abstract = untyped as typeof RateLimiterStoreAbstract;
const inherited = Abstract.prototype as unknown as Inherited;

export interface RateLimiterRlOptions
  extends Omit<IRateLimiterStoreOptions, "storeClient" | "storeType">,
    Omit<AdapterOptions, "withoutIdentity"> {
  readonly limiter: Limiter;
  /**
   * `fixed`: a counter whose window begins with its first request and that counts denials, as in the package's own
   * limiters. `sliding`: exact, and denials consume nothing; `set`, `block` and `blockDuration` are not supported.
   * By default `fixed`.
   */
  readonly algorithm?: Algorithm;
}

type KeyOptions = { readonly customDuration?: number };

/** What the base class has and its declarations do not name. */
interface Inherited {
  _getKeySecDuration(options: KeyOptions): number;
  _handleError(error: unknown, method: string, resolve: unknown, reject: (error: unknown) => void, rest: unknown): void;
}

/**
 * ```ts
 * const flexible = new RateLimiterRl({ limiter: new Limiter(redis), points: 100, duration: 60 });
 * await flexible.consume(request.ip);
 * ```
 *
 * Two limits with the same points and duration need a `keyPrefix` each.
 */
export class RateLimiterRl extends Abstract {
  readonly #limiter: Limiter;
  readonly #algorithm: Algorithm;
  readonly #asking: ReturnType<typeof asking>;
  readonly #keyOf: (identity: string) => string;

  constructor({ limiter, algorithm = "fixed", ...options }: RateLimiterRlOptions) {
    if (algorithm === "sliding" && options.blockDuration) {
      throw new Error('blockDuration needs the algorithm "fixed"');
    }
    super({ ...options, storeClient: limiter });
    this.#limiter = limiter;
    this.#algorithm = algorithm;
    const ask = asking(limiter, options);
    // An insurance limiter decides when the server is unavailable, and nothing else.
    this.#asking = options.insuranceLimiter ? { ...ask, whenUnavailable: "closed" } : ask;
    const policy = options.keyPrefix || describe(this.#rule());
    this.#keyOf = (identity) => adapterKey(options.prefix, policy, identity);
  }

  /** A missing key shares no count with others. @internal */
  override getKey(key: string | number): string {
    identified(key);
    return super.getKey(key);
  }

  /** An insurance limiter takes over where the server is unavailable, and for no other error. @internal */
  _handleError(...given: Parameters<Inherited["_handleError"]>): void {
    const [error, , , reject] = given;
    if (!(error instanceof UnavailableError)) reject(error);
    else inherited._handleError.apply(this, given);
  }

  /** @internal */
  async _upsert(rlKey: string, points: number, msDuration: number, forceExpire = false): Promise<Result> {
    const [key, rule] = [this.#key(rlKey), this.#rule(msDuration)];
    if (forceExpire) {
      if (this.#algorithm === "sliding") throw new Error('set and block need the algorithm "fixed"');
      // A counter is a plain string, and may be set as one.
      const [counter, { timeout }] = [`${key}:${seconds(this.#ms())}s`, this.#asking];
      await this.#limiter.setCounter(counter, points, msDuration > 0 ? msDuration : LONGEST_MS, timeout);
      return this.#peek(key, this.#rule());
    }
    if (points > 0) return this.#limiter.ask([{ key, rule, cost: points === 1 ? undefined : points }], this.#asking);
    if (points < 0) await this.#limiter.refund(key, rule, { ...this.#asking, cost: -points });
    return this.#peek(key, rule);
  }

  #peek(key: string, rule: SlidingRule | FixedRule): Promise<Result> {
    return this.#limiter.ask([{ key, rule, cost: 0 }], { ...this.#asking, peek: true });
  }

  /** @internal */
  async _penalty(key: string | number, points = 1, options: KeyOptions = {}): Promise<RateLimiterRes> {
    const asked = { key: this.#key(this.getKey(key)), rule: this.#rule(this.#ms(options)), cost: points, force: true };
    const result = await this.#limiter.ask([asked], this.#asking);
    return outcome(result, result.used, points);
  }

  /** @internal */
  async _get(rlKey: string, options: KeyOptions = {}): Promise<Result | null> {
    const result = await this.#peek(this.#key(rlKey), this.#rule(this.#ms(options)));
    return result.used === 0 ? null : result;
  }

  /** @internal */
  async _delete(rlKey: string, options: KeyOptions = {}): Promise<boolean> {
    return (await this.#limiter.reset(this.#key(rlKey), this.#rule(this.#ms(options)), this.#asking)) > 0;
  }

  /** @internal */
  _getRateLimiterRes(_rlKey: string, changedPoints: number, result: Result): RateLimiterRes {
    // A sliding window does not take what it denies; the base class tells a denial by what was asked for.
    const denied = !result.allowed && changedPoints > 0;
    const consumed = result.used + (denied && this.#algorithm === "sliding" ? changedPoints : 0);
    // The limit of this process alone, in an outage, may be lower than that by which the base class judges.
    return outcome(result, denied ? Math.max(consumed, this.points + 1) : consumed, changedPoints);
  }

  #key(rlKey: string): string {
    return this.#keyOf(this.keyPrefix === "" ? rlKey : rlKey.slice(this.keyPrefix.length + 1));
  }

  #rule(msDuration = this.#ms()): SlidingRule | FixedRule {
    const ms = msDuration > 0 ? msDuration : LONGEST_MS;
    return ruleOf(this.#algorithm, Math.max(0, this.points), ms, this.#algorithm === "fixed");
  }

  #ms(options: KeyOptions = {}): number {
    const ms = (this as unknown as Inherited)._getKeySecDuration(options) * 1000;
    // 0 means forever.
    return ms > 0 ? ms : LONGEST_MS;
  }
}

function outcome(result: Result, consumed: number, changed: number): RateLimiterRes {
  const ms = (result.allowed ? result.resetAfterMs : result.retryAfterMs) ?? result.windowMs;
  const forEver = ms > LONGEST_MS / 2;
  return new RateLimiterRes(Math.max(result.limit - consumed, 0), forEver ? -1 : ms, consumed, consumed === changed);
}
