/**
 * The limits of this process, for the time in which the server is unavailable: a counter for each window, which begins with
 * its first request. Sliding rules and throttles are only approached.
 */

import type { Figures } from "./reply.js";
import { type Result, toResult } from "./result.js";
import { describe, type QuotaRule, type Window, windowsOf } from "./rules.js";

interface Counter {
  used: number;
  /** By `performance.now()`. */
  endsAt: number;
}

/** The oldest makes room. A key is at most 128 characters, so that these are some tens of megabytes. */
const MOST_KEYS = 50_000;

export class LocalLimits {
  readonly #processes: number;
  /** The counters of each rule at each key. What is over lies there until it is asked for or makes room. */
  readonly #counters = new Map<string, Counter[]>();

  constructor(processes: number) {
    this.#processes = processes;
  }

  /**
   * Decides on a request, and unless it only looks, counts it in every window or in none. Nothing can come between: it takes
   * one turn of the event loop.
   */
  decide(key: string, rule: QuotaRule, cost: number, force: boolean, looks: boolean): Result {
    const now = performance.now();
    const id = `${describe(rule)} ${key}`;
    const windows = windowsOf(rule).map(({ limit, windowMs }) => ({ limit: this.#share(limit), windowMs }));
    const known = this.#counters.get(id);
    const counters = windows.map(({ windowMs }, i): Counter => {
      const counter = known?.[i];
      return counter && counter.endsAt > now ? counter : { used: 0, endsAt: now + windowMs };
    });
    const fits = windows.map(({ limit }, i) => (counters[i] as Counter).used + cost <= limit);
    if (!looks && (force || fits.every(Boolean))) {
      for (const counter of counters) counter.used += cost;
      this.#counters.delete(id);
      this.#counters.set(id, counters);
      if (this.#counters.size > MOST_KEYS) this.#counters.delete(this.#counters.keys().next().value as string);
    }
    const figures = windows.map((window, i) => shown(window, counters[i] as Counter, fits[i] === true, cost, now));
    return toResult(rule, figures, "local");
  }

  /** At least one where anything is allowed at all. */
  #share(limit: number): number {
    return limit === 0 ? 0 : Math.max(1, Math.floor(limit / this.#processes));
  }
}

function shown(
  { limit, windowMs }: Window,
  { used, endsAt }: Counter,
  fits: boolean,
  cost: number,
  now: number,
): Figures {
  const left = used === 0 ? 0 : Math.min(windowMs, Math.max(1, Math.ceil(endsAt - now)));
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
