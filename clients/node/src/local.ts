/**
 * The policy `local`: while the server is unavailable this process counts by itself, by one plain counter for each key and
 * window, which begins with its first request. It is rougher than the server: leases and the shape of a throttle are let go.
 */

import { LOCAL } from "./defaults.js";
import { memoryKey } from "./keys.js";
import { counted, type Result, resultOf, resultOfAll, unlimited, type WindowResult } from "./result.js";
import { type Asked, describe, isForced, unitsOf, windowsOf } from "./words.js";

export class LocalLimits {
  /** Times are by `performance.now()`. What is over lies there until it is asked for or makes room. */
  readonly #counters = new Map<string, { used: number; readonly endsAt: number }>();

  constructor(private readonly processes: number) {}

  /** What is answered in the place of the server. */
  result(policy: "open" | "local", asked: readonly Asked[], all: boolean, looks: boolean): Result {
    const windows = policy === "open" ? asked.map(({ rule }) => unlimited(rule)) : this.decide(asked, looks);
    if (all) return resultOfAll(asked, windows, policy);
    return resultOf((asked[0] as Asked).rule, windows[0] as WindowResult[], policy);
  }

  /** Decides on a request, and unless it only looks, counts it in every window of every rule or in none. */
  decide(demands: readonly Asked[], looks: boolean): WindowResult[][] {
    const now = performance.now();
    const asked = demands.map((demand) => {
      const { key, rule, force } = demand;
      const cost = unitsOf(demand);
      const windows = rule.kind === "lease" ? [] : windowsOf(rule);
      const counters = windows.map(({ limit, windowMs }) => {
        // Of a calendar's window less is left each time.
        const id = `${rule.kind === "calendar" ? describe(rule) : windowMs} ${memoryKey(key)}`;
        const known = this.#counters.get(id);
        const counter = known && known.endsAt > now ? known : { used: 0, endsAt: now + windowMs };
        const share = limit === 0 ? 0 : Math.max(1, Math.floor(limit / this.processes));
        return { id, counter, limit: share, windowMs, fits: counter.used + Math.max(cost, 1) <= share };
      });
      return { rule, cost, counters, passes: isForced(rule, force) || counters.every(({ fits }) => fits) };
    });
    if (!looks && asked.every(({ passes }) => passes)) {
      for (const { cost, counters } of asked) {
        for (const { id, counter } of counters) {
          counter.used += cost;
          this.#counters.delete(id);
          this.#counters.set(id, counter);
        }
      }
      // Many at once: a map looks for its oldest entry among those that were removed.
      const most = this.#counters.size > LOCAL.counters ? 0.9 * LOCAL.counters : LOCAL.counters;
      for (const oldest of this.#counters.keys()) {
        if (this.#counters.size <= most) break;
        this.#counters.delete(oldest);
      }
    }
    return asked.map(({ rule, cost, counters }) => {
      if (rule.kind === "lease") return unlimited(rule);
      return counters.map(({ counter: { used, endsAt }, limit, windowMs, fits }) => {
        const left = used === 0 ? 0 : Math.min(windowMs, Math.max(1, Math.ceil(endsAt - now)));
        return counted(rule, { limit, windowMs }, used, left, fits ? 0 : cost > limit ? undefined : left);
      });
    });
  }
}
