/** The headers and the problem that HTTP clients are told, after draft-ietf-httpapi-ratelimit-headers-11. */

import type { WindowResult } from "./result.js";

export interface HeaderOptions {
  /** Also send `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds) of the policy that binds. */
  readonly legacy?: boolean;
}

/** An `application/problem+json` object, RFC 9457. */
export interface Problem {
  readonly type: "https://iana.org/assignments/http-problem-types#quota-exceeded";
  readonly title: string;
  readonly status: 429;
  /** The names of the policies that denied. */
  readonly "violated-policies": readonly string[];
}

/** The largest integer of a structured field, RFC 9651. */
const LARGEST = 999_999_999_999_999;

export function httpHeaders(
  decision: { readonly allowed: boolean; readonly retryAfter: number | undefined },
  windows: readonly WindowResult[],
  binding: WindowResult | undefined,
  { legacy = false }: HeaderOptions,
): Record<string, string> {
  const headers: Record<string, string> = {
    "RateLimit-Policy": windows.map(policy).join(", "),
    RateLimit: windows.map(state).join(", "),
  };
  if (legacy && binding) {
    headers["X-RateLimit-Limit"] = String(binding.limit);
    headers["X-RateLimit-Remaining"] = String(binding.remaining);
    if (binding.resetAfter !== undefined) headers["X-RateLimit-Reset"] = String(binding.resetAfter);
  }
  if (!decision.allowed && decision.retryAfter !== undefined) headers["Retry-After"] = String(decision.retryAfter);
  return headers;
}

export function quotaExceeded(windows: readonly WindowResult[]): Problem {
  return {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429,
    "violated-policies": windows.filter((window) => !window.allowed).map((window) => window.policy),
  };
}

function policy(window: WindowResult): string {
  let text = `${quoted(window.policy)};q=${fieldInteger(window.limit)}`;
  if (window.unit !== undefined && window.unit !== "requests") text += `;qu=${quoted(window.unit)}`;
  // A lease is no window, and w takes whole seconds only.
  if (window.unit !== "concurrent-requests" && window.windowMs % 1000 === 0) text += `;w=${window.windowMs / 1000}`;
  return text;
}

function state(window: WindowResult): string {
  const text = `${quoted(window.policy)};r=${fieldInteger(window.remaining)}`;
  return window.nextAfter === undefined ? text : `${text};t=${window.nextAfter}`;
}

function fieldInteger(value: number): number {
  return Math.min(value, LARGEST);
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}
