/** The headers and the problem that HTTP clients are told, after draft-ietf-httpapi-ratelimit-headers-11. */

import type { WindowResult } from "./reply.js";
import { type Rule, seconds } from "./rules.js";

export interface HeaderOptions {
  /** Also send `X-RateLimit-Limit`, `X-RateLimit-Remaining` and `X-RateLimit-Reset` (seconds) of the policy that binds. */
  readonly legacy?: boolean;
  /** The names of other policies that the same response tells of. */
  readonly taken?: ReadonlySet<string> | undefined;
}

/** An `application/problem+json` object, RFC 9457. */
export interface Problem {
  readonly type: "https://iana.org/assignments/http-problem-types#quota-exceeded";
  readonly title: string;
  readonly status: 429;
  /** The names of the policies that denied. */
  readonly "violated-policies": readonly string[];
}

/** A window of a rule, and what is known of it. */
export interface Policy {
  readonly name: string;
  readonly limit: number;
  readonly windowMs: number;
  readonly rule: Rule;
  /** Not known of the windows of a forced call, or of `all`, that do not bind. */
  readonly state: WindowResult | undefined;
  /** Whether the request did not fit into it. */
  readonly violated: boolean;
}

/** The largest integer of a structured field, RFC 9651. */
const LARGEST = 999_999_999_999_999;

/** A rule, the windows that a reply told of, and whether the call was denied where one of them has no room. */
interface Asked {
  readonly rule: Rule;
  readonly states: readonly WindowResult[];
  readonly denies: boolean;
}

/** The policies of rules. Names are unique within one response. */
export function policies(rules: readonly Asked[], others: ReadonlySet<string> = new Set()): Policy[] {
  const taken = new Set(others);
  return rules.flatMap(({ rule, states, denies }) => {
    const windows = "windows" in rule ? rule.windows : states.slice(0, 1);
    return windows.map(({ limit, windowMs }) => {
      const window = rule.kind === "calendar" ? rule.period : `${seconds(windowMs)}s`;
      const base = rule.name === undefined ? window : windows.length === 1 ? rule.name : `${rule.name}-${window}`;
      let name = base;
      for (let i = 2; taken.has(name); i++) name = `${base}-${i}`;
      taken.add(name);
      const state = states.find((state) => state.windowMs === windowMs);
      return { name, limit, windowMs, rule, state, violated: denies && state?.allowed === false };
    });
  });
}

export function httpHeaders(
  decision: { readonly allowed: boolean; readonly retryAfter: number | undefined },
  policies: readonly Policy[],
  binding: WindowResult,
  { legacy = false }: HeaderOptions,
): Record<string, string> {
  const wait = decision.allowed ? undefined : decision.retryAfter;
  const headers: Record<string, string> = {
    "RateLimit-Policy": policies.map(policy).join(", "),
    RateLimit: policies.flatMap(({ name, state }) => (state ? [told(name, state, wait)] : [])).join(", "),
  };
  if (legacy) {
    headers["X-RateLimit-Limit"] = String(binding.limit);
    headers["X-RateLimit-Remaining"] = String(binding.remaining);
    if (binding.resetAfter !== undefined) headers["X-RateLimit-Reset"] = String(binding.resetAfter);
  }
  if (wait !== undefined) headers["Retry-After"] = String(wait);
  return headers;
}

export function violatedOf(policies: readonly Policy[]): readonly string[] {
  return policies.flatMap(({ name, violated }) => (violated ? [name] : []));
}

export function quotaExceeded(violated: readonly string[]): Problem {
  return {
    type: "https://iana.org/assignments/http-problem-types#quota-exceeded",
    title: "Request cannot be satisfied as assigned quota has been exceeded",
    status: 429,
    "violated-policies": violated,
  };
}

function policy({ name, limit, windowMs, rule }: Policy): string {
  let text = `${quoted(name)};q=${fieldInteger(limit)}`;
  if (rule.unit !== undefined && rule.unit !== "requests") text += `;qu=${quoted(rule.unit)}`;
  // A lease is no window, the length of a calendar's differs, and w takes whole seconds only.
  if (rule.kind !== "lease" && rule.kind !== "calendar" && windowMs % 1000 === 0) text += `;w=${windowMs / 1000}`;
  return text;
}

/** `t` is not sent beyond Retry-After, which a client would then wait for in vain. */
function told(name: string, { remaining, nextAfter }: WindowResult, retryAfter: number | undefined): string {
  const text = `${quoted(name)};r=${fieldInteger(remaining)}`;
  return !nextAfter || nextAfter > (retryAfter ?? nextAfter) ? text : `${text};t=${nextAfter}`;
}

function fieldInteger(value: number): number {
  return Math.min(value, LARGEST);
}

function quoted(text: string): string {
  return `"${text.replace(/["\\]/g, "\\$&")}"`;
}
