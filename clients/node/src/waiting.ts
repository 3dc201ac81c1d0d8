/** Callers that wait: for how long, until they leave, and in which order. */

import { setTimeout as sleep } from "node:timers/promises";
import { LostReplyError } from "./errors.js";

/** setTimeout takes no more. */
export const LONGEST_TIMER_MS = 2 ** 31 - 1;

/** A call that its caller may leave; what it takes after that is given back where that is said. */
export function unlessLeft<T>(
  signal: AbortSignal | undefined,
  call: () => Promise<T>,
  giveBack?: (taken: T) => unknown,
  giveBackUnknown?: () => unknown,
): Promise<T> {
  if (!signal) return call();
  if (signal.aborted) return Promise.reject(signal.reason);
  return new Promise((resolve, reject) => {
    const leave = () => {
      reject(signal.reason);
      const lost = (error: unknown) => (error instanceof LostReplyError ? giveBackUnknown?.() : undefined);
      work.then(giveBack, lost).catch(() => {});
    };
    // Before the call, since a value that is not a signal throws here, and then nothing may be called.
    signal.addEventListener("abort", leave, { once: true });
    const work = call();
    const stay = () => signal.removeEventListener("abort", leave);
    work.then(stay, stay);
    work.then(resolve, reject);
  });
}

/** Sleeps, and never less: a timer goes by the time at which its turn of the event loop began. */
export async function pauseFor(ms: number, signal?: AbortSignal): Promise<void> {
  const left = countdown(Math.max(0, ms));
  try {
    while (left() > 0) await sleep(Math.min(Math.ceil(left()), LONGEST_TIMER_MS), undefined, signal ? { signal } : {});
  } catch {
    signal?.throwIfAborted();
  }
}

/** How many milliseconds are left of a time that begins now. */
export function countdown(timeout: number): () => number {
  if (typeof timeout !== "number" || !(timeout >= 0)) {
    throw new RangeError(`timeout must be a number of milliseconds from 0, not ${String(timeout)}`);
  }
  const deadline = performance.now() + timeout;
  return () => deadline - performance.now();
}

/** The callers that wait for a place at a key, in the order in which they came: the first of them asks for all. */
export class Queue {
  /** The last caller at each key. */
  readonly #last = new Map<string, Promise<void>>();

  has(id: string): boolean {
    return this.#last.has(id);
  }

  /** Resolves when the caller is the first, or after `ms` milliseconds, with a function that makes the next one the first. */
  async join(id: string, ms: number, signal: AbortSignal | undefined): Promise<() => void> {
    const before = this.#last.get(id) ?? Promise.resolve();
    let leave = () => {};
    const mine = new Promise<void>((resolve) => {
      leave = resolve;
    });
    const both = before.then(() => mine);
    this.#last.set(id, both);
    both.then(() => {
      if (this.#last.get(id) === both) this.#last.delete(id);
    });
    const over = new AbortController();
    const ended = signal ? AbortSignal.any([signal, over.signal]) : over.signal;
    try {
      await Promise.race([before, pauseFor(ms, ended)]);
      return leave;
    } catch (error) {
      leave();
      throw error;
    } finally {
      over.abort();
    }
  }
}
