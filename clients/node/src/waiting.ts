/** Callers that wait: for how long, until they leave, and in which order. */

import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";
import { countdown, LONGEST_TIMER_MS } from "./checks.js";
import type { Result } from "./result.js";

/** A call that its caller may leave; what it takes after that is given back where that is said. */
export function unlessLeft<T>(
  signal: AbortSignal | undefined,
  call: () => Promise<T>,
  giveBack?: (taken: T) => unknown,
): Promise<T> {
  if (!signal) return call();
  if (signal.aborted) return Promise.reject(signal.reason);
  // Many calls may share it, of which Node.js would warn as of a leak.
  if (signal instanceof EventTarget) setMaxListeners(0, signal);
  return new Promise((resolve, reject) => {
    let left = false;
    const leave = () => {
      left = true;
      reject(signal.reason);
    };
    // Before the call, since a value that is not a signal throws here, and then nothing may be called.
    signal.addEventListener("abort", leave, { once: true });
    call()
      .finally(() => signal.removeEventListener("abort", leave))
      .then((taken) => (left ? giveBack?.(taken) : resolve(taken)))
      .catch(reject);
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

/** The callers that wait for a place at a key, in the order in which they came: the first of them asks for all. */
class Line {
  /** When all that are in it have left. */
  over = Promise.resolve();
  /** What the first was told last. */
  denied: Result | undefined;
  freed = latch();

  /** The first waits before it asks again. Resolves with whether a place was freed in this process. */
  pause(ms: number, signal: AbortSignal | undefined): Promise<boolean> {
    return comes(this.freed.opened, ms, signal).finally(() => {
      this.freed = latch();
    });
  }
}

export class Queue {
  readonly #lines = new Map<string, Line>();

  /** Resolves when the caller is the first, or after `ms` milliseconds. That it leaves makes the next one the first. */
  async join(id: string, ms: number, signal: AbortSignal | undefined) {
    const line = this.#lines.get(id) ?? new Line();
    this.#lines.set(id, line);
    const { over: before } = line;
    const { opened, open: leave } = latch();
    const both = before.then(() => opened);
    line.over = both;
    both.then(() => {
      if (line.over === both) this.#lines.delete(id);
    });
    try {
      return { isFirst: await comes(before, ms, signal), line, leave };
    } catch (error) {
      leave();
      throw error;
    }
  }

  /** A place at a key was freed in this process. */
  free(id: string): void {
    this.#lines.get(id)?.freed.open();
  }
}

function latch(): { readonly opened: Promise<void>; readonly open: () => void } {
  let open = () => {};
  const opened = new Promise<void>((resolve) => {
    open = resolve;
  });
  return { opened, open };
}

/** Whether something comes within `ms` milliseconds. */
async function comes(something: Promise<void>, ms: number, signal: AbortSignal | undefined): Promise<boolean> {
  const over = new AbortController();
  const either = () => Promise.race([something.then(() => true), pauseFor(ms, over.signal).then(() => false)]);
  return unlessLeft(signal, either).finally(() => over.abort());
}
