/** A token budget: reserve an estimate, settle what it really was. */

import type { Word } from "./connection.js";
import type { Limiter } from "./limiter.js";
import type { Result } from "./result.js";
import type { FixedRule, SlidingRule } from "./rules.js";

/** Units taken on an estimate by {@link Limiter.reserve}. */
export class Reservation {
  /** Whether the estimate fitted. If not, nothing was taken and there is nothing to settle. */
  readonly allowed: boolean;
  /** The decision on the estimate. */
  readonly result: Result;
  readonly #limiter: Limiter;
  readonly #key: Word;
  readonly #rule: SlidingRule | FixedRule;
  readonly #units: number;
  #settled = false;

  /** @internal */
  constructor(limiter: Limiter, key: Word, rule: SlidingRule | FixedRule, units: number, result: Result) {
    this.#limiter = limiter;
    this.#key = key;
    this.#rule = rule;
    this.#units = units;
    this.result = result;
    this.allowed = result.allowed;
  }

  /**
   * Puts the real number of units in the place of the estimate. What was reserved too much is given back, unless its
   * window is over; what is missing is charged, whether it fits or not, and the next requests wait for it.
   *
   * If it rejects, it may be called again, except after a {@link LostReplyError}: then it may have been done.
   *
   * @throws Error if the reservation was denied or is settled already.
   */
  async settle(units: number): Promise<void> {
    if (!Number.isSafeInteger(units) || units < 0)
      throw new RangeError(`units must be an integer from 0, not ${units}`);
    if (!this.allowed) throw new Error("The reservation was denied: there is nothing to settle");
    if (this.#settled) throw new Error("The reservation is settled already");
    this.#settled = true;
    const more = units - this.#units;
    try {
      if (more > 0) await this.#limiter.hit(this.#key, this.#rule, { cost: more, force: true });
      if (more < 0) await this.#limiter.refund(this.#key, this.#rule, { cost: -more, atMs: this.result.atMs });
    } catch (error) {
      this.#settled = false;
      throw error;
    }
  }

  /** Gives everything back: `settle(0)`. */
  async cancel(): Promise<void> {
    await this.settle(0);
  }
}
