/** What the adapters have in common: their options, their keys, and how they ask. */

import { duration, known, oneOf, seconds } from "./checks.js";
import { ADAPTER, POLICIES } from "./defaults.js";
import { NoIdentityError, UnavailableError } from "./errors.js";
import { Limiter } from "./limiter.js";
import type { WhenUnavailable } from "./options.js";
import { type FixedRule, fixed, type SlidingRule, sliding } from "./rules.js";

export interface AdapterOptions {
  /** Put in front of every key, behind the limiter's own prefix. By default `rl:`. */
  readonly prefix?: string;
  /** For how many milliseconds a request waits for the decision. By default the limiter's `timeout`, and at most 250. */
  readonly timeout?: number;
  /** What is done when the server is unavailable; unless given, what the limiter says, else `open`, and of stores `closed`. */
  readonly whenUnavailable?: WhenUnavailable;
  /** Whether denials are remembered: for its wait, at most a second, a denied request is denied without asking. By default true. */
  readonly denyCache?: boolean;
  /** What is done with a request without a key: `refuse` fails with status 403, `allow` counts it nowhere. By default `refuse`. */
  readonly withoutIdentity?: "refuse" | "allow";
}

export type Algorithm = "sliding" | "fixed";

export interface StoreOptions extends AdapterOptions {
  /**
   * `sliding`: never more than the limit in any stretch of time as long as the window. `fixed`: one small counter, whose
   * window begins with its first request, as in the framework's own stores. By default `sliding`.
   */
  readonly algorithm?: Algorithm;
  /** The name of the limit in the keys: needed where two limits have the same number and window. */
  readonly name?: string;
}

/** How an adapter asks a limiter. Throws where its options cannot be kept, or one of them is not among `names`. */
export function asking(limiter: Limiter, options: StoreOptions, what = "the store", names = Object.keys(options)) {
  known(what, options, ["prefix", "timeout", "whenUnavailable", "denyCache", "withoutIdentity", ...names]);
  const { timeout, denyCache = true, ...given } = options;
  if (!(limiter instanceof Limiter)) throw new TypeError("the store needs a Limiter: new Limiter(client)");
  if (typeof denyCache !== "boolean") throw new TypeError(`denyCache is true or false, and not ${String(denyCache)}`);
  oneOf("withoutIdentity", given.withoutIdentity, ["refuse", "allow"]);
  oneOf("algorithm", given.algorithm, ["sliding", "fixed"]);
  return {
    timeout: timeout === undefined ? Math.min(limiter.timeout, ADAPTER.timeout) : duration("timeout", timeout),
    denyCache,
    whenUnavailable: oneOf("whenUnavailable", given.whenUnavailable, POLICIES),
  };
}

/**
 * Whether a request is refused although its framework lets requests through after errors of a store: that is meant for a
 * server that cannot decide, and not for a request without an identity, or for a key that is of another kind.
 */
export function isRefused(limiter: Limiter, passes: boolean, error: unknown): boolean {
  if (!passes || error instanceof UnavailableError) return false;
  if (!(error instanceof NoIdentityError)) limiter.warn(`a request was refused: ${(error as Error).message}`);
  return true;
}

/** The rule of a limit and a window in milliseconds. */
export function ruleOf(algorithm: Algorithm, limit: number, windowMs: number, force = false): SlidingRule | FixedRule {
  const rate = [limit, windowMs / 1000] as const;
  return algorithm === "fixed" ? fixed(rate, { anchored: true, force }) : sliding(rate, { force });
}

/** The policy of a limit that is another one for each request: without its number. */
export function dynamicPolicy(algorithm: Algorithm, windowMs: number): string {
  return `${algorithm === "fixed" ? "anchored" : "sliding"}-${seconds(windowMs)}s`;
}

/** Whether there is something to count by; throws if there is not and the request is to be refused. */
export function identified(key: unknown, withoutIdentity: "refuse" | "allow" = "refuse"): key is string {
  if ((typeof key === "number" && !Number.isNaN(key)) || (typeof key === "string" && key !== "")) return true;
  if (withoutIdentity === "allow") return false;
  throw new NoIdentityError();
}
