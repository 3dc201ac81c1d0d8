/**
 * The limits of this process, for the time in which the server is unavailable: the memory limiter of
 * rate-limiter-flexible, one for each window. Its windows begin with their first request, so that sliding rules and
 * throttles are only approached.
 */

import type { RateLimiterMemory, RateLimiterRes } from "rate-limiter-flexible";
import { describe } from "./identity.js";
import type { Figures, Result } from "./result.js";
import { toResult } from "./result.js";
import type { QuotaRule, Window } from "./rules.js";

type MemoryClass = typeof RateLimiterMemory;

export class LocalLimits {
  readonly #Memory: MemoryClass;
  readonly #processes: number;
  readonly #limiters = new Map<string, RateLimiterMemory[]>();

  constructor(processes: number) {
    if (!Number.isSafeInteger(processes) || processes < 1) {
      throw new RangeError(`processes must be an integer from 1, not ${processes}`);
    }
    this.#processes = processes;
    try {
      this.#Memory = (require("rate-limiter-flexible") as { RateLimiterMemory: MemoryClass }).RateLimiterMemory;
    } catch (cause) {
      throw new Error('whenUnavailable: "local" needs the package rate-limiter-flexible', { cause });
    }
  }

  /** Counts a request in every window, or in none. */
  async hit(key: string, rule: QuotaRule, cost: number, force: boolean): Promise<Result> {
    const windows = windowsOf(rule).map(({ limit, windowMs }) => ({ limit: this.#share(limit), windowMs }));
    const limiters = this.#limitersOf(rule, windows);
    const counts = await Promise.all(limiters.map((limiter) => limiter.get(key)));
    const fits = windows.map(({ limit }, i) => (counts[i]?.consumedPoints ?? 0) + cost <= limit);
    const counted = force || fits.every(Boolean);
    const after = counted ? await Promise.all(limiters.map((limiter) => limiter.penalty(key, cost))) : counts;
    return toResult(
      rule,
      windows.map((window, i) => figures(window, after[i] ?? null, fits[i] === true, cost)),
    );
  }

  /** At least one where anything is allowed at all. */
  #share(limit: number): number {
    return limit === 0 ? 0 : Math.max(1, Math.floor(limit / this.#processes));
  }

  #limitersOf(rule: QuotaRule, windows: readonly Window[]): RateLimiterMemory[] {
    const policy = describe(rule);
    let limiters = this.#limiters.get(policy);
    if (!limiters) {
      limiters = windows.map(
        ({ limit, windowMs }, i) =>
          new this.#Memory({ points: limit, duration: windowMs / 1000, keyPrefix: `${policy}:${i}` }),
      );
      this.#limiters.set(policy, limiters);
    }
    return limiters;
  }
}

/** A throttle lets its burst and one more through in the time in which that fills again: its rate, in the long run. */
function windowsOf(rule: QuotaRule): readonly Window[] {
  if (rule.kind !== "throttle") return rule.windows;
  const limit = rule.burst + 1;
  return [{ limit, windowMs: Math.ceil((limit * rule.period * 1000) / rule.count) }];
}

function figures({ limit, windowMs }: Window, state: RateLimiterRes | null, fits: boolean, cost: number): Figures {
  const used = state?.consumedPoints ?? 0;
  const left = state ? Math.max(1, state.msBeforeNext) : 0;
  return {
    allowed: fits ? 1 : 0,
    limit,
    used,
    remaining: Math.max(0, limit - used),
    "retry-after-ms": fits ? 0 : cost > limit ? -1 : left,
    "next-after-ms": left,
    "reset-after-ms": left,
    "window-ms": windowMs,
    "at-ms": Date.now(),
  };
}
