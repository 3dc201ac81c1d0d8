/** A lease that is held: renewed while it is needed, released at the end, over by itself if its holder dies. */

import { LONGEST_TIMER_MS } from "./checks.js";
import { RENEWALS } from "./defaults.js";
import type { Word } from "./keys.js";
import type { LeaseRule } from "./rules.js";

export interface LeaseKeeper<R = LeaseRule> {
  acquire(key: Word, rule: R, options: { readonly holder: Word }): Promise<{ readonly allowed: boolean }>;
  release(key: Word, holder: Word): Promise<number>;
  warn(line: string): void;
}

export interface LeaseOptions {
  /** Renew the lease by itself, each time a third of it has passed. By default true. */
  readonly renew?: boolean;
  /** The time by `performance.now()` before the call that took it was sent; unless given, now. */
  readonly takenAt?: number;
}

/**
 * A lease, taken by {@link Limiter.hold}. Make one directly for a lease that was taken in {@link Limiter.all}.
 *
 * It ends by the clock of this process, counted from before the call that took or renewed it, and so never later than on
 * the server.
 */
export class Lease<R extends { readonly leaseMs: number } = LeaseRule> {
  readonly key: Word;
  readonly holder: Word;
  readonly #limiter: LeaseKeeper<R>;
  readonly #rule: R;
  readonly #renews: boolean;
  readonly #abort = new AbortController();
  #endsAt: number;
  #end: NodeJS.Timeout | undefined;
  #renewal: NodeJS.Timeout | undefined;
  #released = false;

  constructor(limiter: LeaseKeeper<R>, key: Word, rule: R, holder: Word, options: LeaseOptions = {}) {
    this.#limiter = limiter;
    this.#rule = rule;
    this.#renews = options.renew ?? true;
    this.key = key;
    this.holder = holder;
    this.#endsAt = (options.takenAt ?? performance.now()) + rule.leaseMs;
    this.#schedule();
  }

  /** Whether the lease has ended without being released. Then others may hold it. */
  get lost(): boolean {
    // By the clock, and not by the timer alone, which a busy process runs late.
    if (!this.#released && !this.signal.aborted && performance.now() >= this.#endsAt) {
      this.#lose("The lease has ended before it could be renewed");
    }
    return this.signal.aborted;
  }

  /** Aborts when the lease is lost: it could not be renewed in time, or others hold all there are. */
  get signal(): AbortSignal {
    return this.#abort.signal;
  }

  /**
   * Renews the lease now. Resolves with whether it is held.
   *
   * @throws UnavailableError if the server cannot be asked; the lease goes on until its end.
   */
  async renew(): Promise<boolean> {
    if (this.#released || this.lost) return false;
    const asked = performance.now();
    const { allowed } = await this.#limiter.acquire(this.key, this.#rule, { holder: this.holder });
    if (this.#released || this.lost) {
      // Released, or lost to those who have been told so, while the call was under way: what it took is given back.
      if (allowed) await this.#limiter.release(this.key, this.holder);
      return false;
    }
    if (allowed) {
      this.#endsAt = asked + this.#rule.leaseMs;
      this.#schedule();
    } else this.#lose("The lease has ended, and others hold all there are");
    return allowed;
  }

  /** Ends the lease. Resolves with whether it was still held. Releasing twice is no error. */
  async release(): Promise<boolean> {
    this.#released = true;
    this.#stop();
    return (await this.#limiter.release(this.key, this.holder)) > 0;
  }

  /** Releases the lease at the end of the work, whose outcome stays: an error of the release is logged. */
  async end(): Promise<void> {
    try {
      await this.release();
    } catch (error) {
      this.#limiter.warn(`a lease could not be released and ends by itself: ${(error as Error).message}`);
    }
  }

  /** {@link end}, for `await using`, which TypeScript has from 5.2 and Node.js from 24. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.end();
  }

  #schedule(): void {
    this.#stop();
    const left = this.#endsAt - performance.now();
    const tell = () => {
      if (!this.lost && !this.#released) this.#schedule();
    };
    this.#end = setTimeout(tell, Math.min(Math.max(0, Math.ceil(left)), LONGEST_TIMER_MS)).unref();
    if (this.#renews) this.#renewIn(left / RENEWALS);
  }

  /** A renewal that fails is tried again in a third of the time that is left then. */
  #renewIn(ms: number): void {
    const again = () => {
      if (!this.#released && !this.lost) this.#renewIn((this.#endsAt - performance.now()) / RENEWALS);
    };
    const renew = () => this.renew().catch(again);
    this.#renewal = setTimeout(renew, Math.min(Math.max(1, ms), LONGEST_TIMER_MS)).unref();
  }

  #lose(reason: string): void {
    this.#stop();
    this.#abort.abort(new Error(reason));
  }

  #stop(): void {
    clearTimeout(this.#end);
    clearTimeout(this.#renewal);
  }
}
