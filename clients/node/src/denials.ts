/** Denials that are remembered, so that a flood at one key does not reach the server. */

import { DENY_CACHE } from "./defaults.js";
import { memoryKey } from "./keys.js";
import { WindowResult } from "./result.js";
import type { Rule } from "./rules.js";
import { type Asked, describe, isForced, unitsOf } from "./words.js";

/** About what the entry of one denial takes, and each of its windows, beside the key. */
const ENTRY_BYTES = 240;
const WINDOW_BYTES = 170;

export interface Denial {
  readonly rule: string;
  readonly cost: number;
  readonly windows: readonly WindowResult[];
  /** When the reply came: what it says about waits counts from then, and is never too short. */
  readonly receivedAt: number;
  /** When its wait is over, counted from before the call was sent, so that no request is denied for longer than by the server. */
  readonly endsAt: number;
  /** Until when it is believed, counted in the same way: another process may have given something back. */
  readonly until: number;
  /**
   * The call that finds out whether it still holds, once it is believed no longer. One request asks, and others wait for what that
   * is told: not all of a flood ask at once, however slow this process or the server is.
   */
  asking: Promise<unknown> | undefined;
}

/** One denial a key, since one key belongs to one rule; the oldest makes room. */
export class DenialCache {
  readonly #denials = new Map<string, Denial>();
  #bytes = 0;

  /** The denial of the same or a lighter request, until its wait is over. */
  find(key: string, rule: Rule, cost: number, now: number): Denial | undefined {
    const denial = this.#denials.get(key);
    if (!denial || now >= denial.endsAt || denial.rule !== describe(rule) || cost < denial.cost) return undefined;
    // A request that never fits is not told to wait.
    if (cost > denial.cost && denial.windows.some(({ limit }) => cost > limit)) return undefined;
    return denial;
  }

  remember(key: string, rule: Rule, cost: number, windows: readonly WindowResult[], sentAt: number): void {
    const now = performance.now();
    const waits = windows.map(({ retryAfterMs = Number.POSITIVE_INFINITY }) => retryAfterMs);
    const endsAt = sentAt + Math.max(...waits);
    const until = Math.min(sentAt + DENY_CACHE.believed, endsAt);
    this.forget(key);
    if (endsAt <= now) return;
    const denial = { rule: describe(rule), cost, windows, receivedAt: now, endsAt, until, asking: undefined };
    this.#denials.set(key, denial);
    this.#bytes += sizeOf(key, denial);
    for (const oldest of this.#denials.keys()) {
      if (this.#denials.size <= DENY_CACHE.entries && this.#bytes <= DENY_CACHE.bytes) break;
      this.forget(oldest);
    }
  }

  /** A request that was allowed shows that the denial of a request that was not heavier is over. */
  refute(key: string, rule: Rule, cost: number): void {
    const denial = this.#denials.get(key);
    if (denial && denial.rule === describe(rule) && cost >= denial.cost) this.forget(key);
  }

  forget(key: string): void {
    const denial = this.#denials.get(key);
    if (!denial) return;
    this.#denials.delete(key);
    this.#bytes -= sizeOf(key, denial);
  }
}

/** The figures of a denial, as they are now. */
export function figuresNow({ windows, receivedAt }: Denial, now: number): WindowResult[] {
  const passed = Math.floor(now - receivedAt);
  const left = (ms: number | undefined) => ms && Math.max(1, ms - passed);
  return windows.map(
    (window) =>
      new WindowResult({
        ...window,
        retryAfterMs: left(window.retryAfterMs),
        nextAfterMs: left(window.nextAfterMs),
        resetAfterMs: left(window.resetAfterMs),
        atMs: window.atMs + passed,
      }),
  );
}

/** What of a call may be remembered: `index` is the position of its rule. */
export function keptOf(asked: readonly Asked[]) {
  return [...asked.entries()].flatMap(([index, one]) => {
    const { key, rule, force, remembers = true } = one;
    if (!remembers || rule.kind === "lease" || isForced(rule, force)) return [];
    return [{ id: memoryKey(key), rule, cost: unitsOf(one), index }];
  });
}

/** Keys are hashed where they are long, so that they take no more than their windows. */
function sizeOf(key: string, { windows }: Denial): number {
  return ENTRY_BYTES + key.length + WINDOW_BYTES * windows.length;
}
