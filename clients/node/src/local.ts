/**
 * The limits of this process, for the time in which the server is unavailable: a counter for each window, which begins with
 * its first request. Sliding rules and throttles are only approached.
 */

import { type Figures, lengthless } from "./reply.js";
import { describe, type LeaseRule, type Rule, type Window, windowsOf } from "./rules.js";

/** What is asked of one rule. */
export interface LocalDemand {
  readonly key: string;
  readonly rule: Rule;
  readonly cost: number;
  readonly force: boolean;
}

interface Counter {
  used: number;
  /** By `performance.now()`. The leases of a key end when they are released. */
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
   * Decides on a request under one or several rules, and unless it only looks, counts it in every window or in none. Returns
   * the figures of each rule's windows. Nothing can come between: it takes one turn of the event loop.
   */
  decide(demands: readonly LocalDemand[], looks: boolean): Figures[][] {
    const now = performance.now();
    const asked = demands.map(({ key, rule, cost, force }) => {
      const id = idOf(key, rule);
      const windows = windowsOf(rule).map(({ limit, windowMs }) => ({ limit: this.#share(limit), windowMs }));
      const known = this.#counters.get(id);
      const counters = windows.map(({ windowMs }, i): Counter => {
        const counter = known?.[i];
        if (counter && counter.endsAt > now) return counter;
        return { used: 0, endsAt: rule.kind === "lease" ? Number.POSITIVE_INFINITY : now + windowMs };
      });
      const fits = windows.map(({ limit }, i) => (counters[i] as Counter).used + cost <= limit);
      return { id, windows, counters, fits, cost, force };
    });
    if (!looks && asked.every(({ force, fits }) => force || fits.every(Boolean))) {
      for (const { id, counters, cost } of asked) {
        for (const counter of counters) counter.used += cost;
        this.#counters.delete(id);
        this.#counters.set(id, counters);
        if (this.#counters.size > MOST_KEYS) this.#counters.delete(this.#counters.keys().next().value as string);
      }
    }
    return asked.map(({ windows, counters, fits, cost }, n) => {
      const figures = windows.map((each, i) => shown(each, counters[i] as Counter, fits[i] === true, cost, now));
      return demands[n]?.rule.kind === "calendar" ? figures.map(lengthless) : figures;
    });
  }

  /** Ends a lease that was taken here. */
  release(key: string, rule: LeaseRule): void {
    const id = idOf(key, rule);
    const [counter] = this.#counters.get(id) ?? [];
    if (counter && --counter.used <= 0) this.#counters.delete(id);
  }

  /** At least one where anything is allowed at all. */
  #share(limit: number): number {
    return limit === 0 ? 0 : Math.max(1, Math.floor(limit / this.#processes));
  }
}

function idOf(key: string, rule: Rule): string {
  return `${describe(rule)} ${key}`;
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
