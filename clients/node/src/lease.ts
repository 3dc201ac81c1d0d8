/** A lease that is held: renewed while it is needed, released at the end, over by itself if its holder dies. */

import type { Word } from "./connection.js";
import type { RateLimiter } from "./limiter.js";
import type { LeaseRule } from "./rules.js";

export interface LeaseOptions {
  /** Who holds the lease; a random UUID unless given. */
  readonly holder?: Word;
  /** Renew the lease by itself, each time a third of it has passed. By default true. */
  readonly renew?: boolean;
}

/**
 * A lease, taken by {@link RateLimiter.lease} or {@link RateLimiter.withLease}. Make one directly for a lease that was
 * taken in {@link RateLimiter.all}.
 */
export class Lease {
  /** The key it lies at. */
  readonly key: Word;
  /** Who holds it. */
  readonly holder: Word;
  readonly #limiter: RateLimiter;
  readonly #rule: LeaseRule;
  readonly #abort = new AbortController();
  #endsAt: number;
  #timer: NodeJS.Timeout | undefined;
  #released = false;

  constructor(limiter: RateLimiter, key: Word, rule: LeaseRule, holder: Word, options: LeaseOptions = {}) {
    this.#limiter = limiter;
    this.#rule = rule;
    this.key = key;
    this.holder = holder;
    this.#endsAt = performance.now() + rule.leaseMs;
    if (options.renew ?? true) this.#schedule();
  }

  /** Aborts when the lease is lost: it could not be renewed in time, or others hold all there are. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /**
   * Renews the lease now. Resolves with whether it is held.
   *
   * @throws the client's error if the server cannot be asked; the lease goes on until its end.
   */
  async renew(): Promise<boolean> {
    if (this.#released || this.signal.aborted) return false;
    const asked = performance.now();
    const { allowed } = await this.#limiter.acquire(this.key, this.#rule, this.holder);
    if (this.#released) {
      // Released while the renewal was under way: what it took is given back.
      if (allowed) await this.#limiter.release(this.key, this.holder);
      return false;
    }
    if (allowed) this.#endsAt = asked + this.#rule.leaseMs;
    else this.#lose(new Error("The lease has ended, and others hold all there are"));
    return allowed;
  }

  /** Ends the lease. Resolves with whether it was still held. Releasing twice is no error. */
  async release(): Promise<boolean> {
    this.#released = true;
    clearTimeout(this.#timer);
    return (await this.#limiter.release(this.key, this.holder)) > 0;
  }

  /** Releases the lease at the end of an `await using`. If that fails, it ends by itself. */
  async [Symbol.asyncDispose](): Promise<void> {
    try {
      await this.release();
    } catch {
      // The work is done, and its outcome must not depend on this.
    }
  }

  #schedule(): void {
    if (this.#released || this.signal.aborted) return;
    const left = this.#endsAt - performance.now();
    if (left <= 0) {
      this.#lose(new Error("The lease has ended before it could be renewed"));
      return;
    }
    // A renewal that fails is tried again, in time before the end.
    this.#timer = setTimeout(
      () => {
        this.renew().then(
          () => this.#schedule(),
          () => this.#schedule(),
        );
      },
      Math.min(left, Math.max(1, Math.min(left / 3, 2 ** 30))),
    );
    this.#timer.unref();
  }

  #lose(reason: Error): void {
    clearTimeout(this.#timer);
    this.#abort.abort(reason);
  }
}
