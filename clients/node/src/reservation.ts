/** A token budget: reserve an estimate, settle what it really was. */

import { LostReplyError } from "./errors.js";
import type { Result } from "./result.js";

/** Units taken on an estimate by {@link Limiter.reserve}. */
export class Reservation {
  /** Whether the estimate fitted. If not, nothing was taken and there is nothing to settle. */
  readonly allowed: boolean;
  /** The decision on the estimate. */
  readonly result: Result;
  readonly #units: number;
  readonly #charge: (more: number) => Promise<void>;
  #settled: number | undefined;
  #charging: Promise<void> | undefined;

  /** @internal */
  constructor(result: Result, units: number, charge: (more: number) => Promise<void>) {
    this.result = result;
    this.allowed = result.allowed;
    this.#units = units;
    this.#charge = charge;
  }

  /**
   * Puts the real number of units in the place of the estimate. What was reserved too much is given back, unless its
   * window is over; what is missing is charged, whether it fits or not, and the next requests wait for it. Where not the
   * server decided on the estimate, it has counted nothing, and nothing is changed there.
   *
   * If it rejects, the estimate stays counted, and it may be called again. After a {@link LostReplyError} it may have been
   * done: then it rejects with that again, so that nothing is charged or given back twice. Settling again with the same
   * number changes nothing.
   *
   * @throws Error if the reservation was denied, or is settled with another number.
   */
  async settle(units: number): Promise<void> {
    if (!Number.isSafeInteger(units) || units < 0)
      throw new RangeError(`units must be an integer from 0, not ${units}`);
    if (!this.allowed) throw new Error("The reservation was denied: there is nothing to settle");
    if (this.#settled !== undefined && this.#settled !== units)
      throw new Error(`The reservation is settled already, with ${this.#settled} units`);
    this.#settled = units;
    this.#charging ??= this.result.source === "server" ? this.#charge(units - this.#units) : Promise.resolve();
    try {
      await this.#charging;
    } catch (error) {
      if (!(error instanceof LostReplyError)) {
        this.#settled = undefined;
        this.#charging = undefined;
      }
      throw error;
    }
  }

  /** Gives everything back: `settle(0)`. */
  async cancel(): Promise<void> {
    await this.settle(0);
  }
}
