/**
 * What the middleware of each framework shares: by which rules and keys a request is counted, one decision on all of them,
 * and what is answered in the application's place. A framework adds how its requests, routes and responses look.
 */

import { randomUUID } from "node:crypto";
import type { ServerResponse } from "node:http";
import { type AdapterOptions, asking, identified } from "./adapter.js";
import { ADAPTER, STATUS } from "./defaults.js";
import { AnsweredError, NoIdentityError } from "./errors.js";
import { adapterKey, clientAddress, type RequestLike, shortened } from "./identity.js";
import { Lease } from "./lease.js";
import type { Limiter } from "./limiter.js";
import type { Result } from "./result.js";
import type { LeaseRule, Rule } from "./rules.js";
import { type Asked, checked, describe, policyOf, unitsOf } from "./words.js";

/** A rule, or a function of the request that gives its rule: `undefined` for a request that is not limited. */
export type RuleOf<Q> = Rule | ((request: Q) => Rule | undefined | Promise<Rule | undefined>);

/** Whom a request is counted for: `undefined` or an empty text if that is not known. */
export type KeyOf<Q> = (request: Q) => string | undefined | Promise<string | undefined>;

export type CostOf<Q> = number | ((request: Q) => number | Promise<number>);

/** A rule with a key or a cost of its own. */
export interface Limit<Q> {
  readonly rule: RuleOf<Q>;
  readonly key?: KeyOf<Q>;
  readonly cost?: CostOf<Q>;
}

/** One rule, or several in one decision. */
export type Limits<Q> = RuleOf<Q> | Limit<Q> | readonly (RuleOf<Q> | Limit<Q>)[];

/** `D` is what answers a denied request in the framework. */
export interface GuardOptions<Q, D> extends AdapterOptions {
  /** Whom a request is counted for. By default the address of its connection. */
  readonly key?: KeyOf<Q>;
  /** Units that a request weighs, in all rules but leases that have no cost of their own. By default the rule's. */
  readonly cost?: CostOf<Q>;
  /** Answers a denied request, in place of the problem document with status 429. The headers are in its response, too. */
  readonly onDenied?: D;
}

/** What is done with a request. */
export interface Admission<D> {
  /** What is answered in the place of the application; none of a request that is let in. */
  readonly refusal?: { readonly status: number; readonly type: string; readonly body: string };
  /** The application's own answer to a denial, in place of the refusal. */
  readonly onDenied?: D | undefined;
  /** Of the response, whether the middleware makes it or the application. */
  readonly headers: Readonly<Record<string, string>>;
  /** None where nothing was asked. */
  readonly result?: Result;
  /** Ends the leases of the request, if it has any: for when the response has been sent, or its client has left. */
  readonly end?: () => void;
}

/**
 * Makes the function that decides on a request: `route` is the template of the route that the limit is declared on, `incoming`
 * gives the request of node:http, and `more` are the options of the framework's own. A response of node:http gets the headers,
 * and its end is that of the leases.
 */
export function guard<Q extends object, D>(
  limiter: Limiter,
  limits: Limits<Q>,
  options: GuardOptions<Q, D>,
  incoming: (request: Q) => Incoming | undefined,
  ...more: string[]
): (request: Q, route: string | undefined, response?: Outgoing) => Promise<Admission<D>> {
  const { cost, prefix, withoutIdentity, onDenied } = options;
  const asked = asking(limiter, options, "rateLimit()", ["key", "cost", "onDenied", ...more]);
  const how = { ...asked, habit: ADAPTER.whenUnavailable };
  const identify = clientAddress();
  const addressOf = (request: Q) => {
    const from = incoming(request);
    return from && identify(from);
  };
  const list = ([limits].flat() as readonly (RuleOf<Q> | Limit<Q>)[]).map(
    (limit): Limit<Q> => (limit instanceof Object && "rule" in limit ? limit : { rule: limit }),
  );
  if (list.length === 0) throw new TypeError("rateLimit() needs a rule");
  for (const { rule } of list) if (typeof rule !== "function") ofRequests(rule);

  const demandsOf = async (request: Q, route: string | undefined) => {
    const demands: Asked[] = [];
    for (const limit of list) {
      const rule = typeof limit.rule === "function" ? await limit.rule(request) : limit.rule;
      if (rule === undefined) continue;
      const identity = await (limit.key ?? options.key ?? addressOf)(request);
      if (!identified(identity, withoutIdentity)) continue;
      // A path that is not a template is as long as the client likes.
      const isOfRoute = rule.name === undefined && route !== undefined;
      const policy = isOfRoute ? `${shortened(route)} ${describe(rule)}` : policyOf(rule);
      const units = limit.cost ?? (ofRequests(rule).kind === "lease" ? undefined : cost);
      demands.push({
        key: adapterKey(prefix, policy, String(identity)),
        rule,
        holder: rule.kind === "lease" ? randomUUID() : undefined,
        cost: typeof units === "function" ? await units(request) : units,
      });
    }
    return demands;
  };

  const decide = async (request: Q, route: string | undefined): Promise<Admission<D>> => {
    try {
      const demands = await demandsOf(request, route);
      if (demands.length === 0) return { headers: {} };
      const leases = demands.filter(({ rule }) => rule.kind === "lease") as (Asked & {
        rule: LeaseRule;
        holder: string;
      })[];
      const lost = () => {
        for (const { key, rule, holder } of leases) void limiter.releaseLeft(key, rule, holder);
      };
      const takenAt = performance.now();
      // What weighs nothing is checked by RL.ALL alone.
      const all = demands.length > 1 || leases.length > 0 || unitsOf(demands[0] as Asked) === 0;
      const result = await limiter.ask(demands, { ...how, all, lost });
      const { names, headers, problem } = result.told(told.get(request));
      told.set(request, names);
      if (problem) return { refusal: refusal(STATUS.denied, problem), onDenied, headers, result };
      // Without the server no lease is held.
      if (result.source !== "server" || leases.length === 0) return { headers, result };
      const held = leases.map(({ key, rule, holder }) => new Lease(limiter, key, rule, holder, { takenAt }));
      const end = () => {
        for (const lease of held.splice(0)) void lease.end();
      };
      return { headers, result, end };
    } catch (error) {
      if (!(error instanceof AnsweredError)) throw error;
      const { status } = error;
      const title = error instanceof NoIdentityError ? error.message : "The rate limiter is not available";
      return { refusal: refusal(status, { title, status }), headers: {} };
    }
  };

  return async (request, route, response) => {
    const admission = await decide(request, route);
    const { headers, end } = admission;
    if (response && end) over(response, end, incoming(request));
    // Another may have answered meanwhile, as by a time-out of the application's.
    const open = response?.headersSent ? undefined : response;
    for (const [name, value] of Object.entries(headers)) open?.appendHeader(name, value);
    return admission;
  };
}

/** The names of the policies that the response to a request tells of: those of several middlewares differ. */
const told = new WeakMap<object, ReadonlySet<string>>();

/** A request of node:http, and its response. */
type Incoming = RequestLike & {
  readonly socket?: { readonly destroyed?: boolean; once?(event: "close", end: () => void): unknown } | null;
};
type Outgoing = ServerResponse & { readonly stream?: { readonly destroyed: boolean } };

/** Calls `end` when a response of node:http has been sent or its client has left, perhaps before the middleware ran. */
function over(response: Outgoing, end: () => void, request: Incoming | undefined): void {
  // Of HTTP/2 the stream says it. What stands in for the response of a WebSocket has no socket of its own, and is never sent.
  const what = (response.stream || response.socket ? undefined : request?.socket) ?? response;
  if (response.writableEnded || (response.stream?.destroyed ?? what.destroyed)) end();
  else what.once?.("close", end);
}

/**
 * The response to a request of Fetch, of the application or of who refuses it, with the headers. The leases end when its body has
 * been read, it has none, or the client has left.
 */
export async function responded<A>(
  { signal, method }: Request,
  { refusal, onDenied, headers, end }: Admission<(asked: A) => Response | Promise<Response>>,
  asked: A,
  application: () => Promise<Response>,
): Promise<Response> {
  if (end) {
    signal.addEventListener("abort", end, { once: true });
    if (signal.aborted) end();
  }
  try {
    const answer = () =>
      refusal && new Response(refusal.body, { status: refusal.status, headers: { "Content-Type": refusal.type } });
    const response = (await onDenied?.(asked)) ?? answer() ?? (await application());
    // An upgrade to a WebSocket cannot be copied: Deno makes a response of status 101 of it, Bun none at all.
    if (!(response?.status >= 200)) {
      end?.();
      return response;
    }
    let { body } = response;
    // That of a HEAD is not read.
    if (end && body && method !== "HEAD") {
      const { readable, writable } = new TransformStream();
      body.pipeTo(writable).then(end, end);
      body = readable;
    } else end?.();
    // The headers of a response that was fetched cannot be changed.
    const changed = new Response(body, response);
    for (const [name, value] of Object.entries(headers)) changed.headers.append(name, value);
    return changed;
  } catch (error) {
    end?.();
    throw error;
  }
}

function refusal(status: number, problem: object) {
  return { status, type: "application/problem+json", body: JSON.stringify(problem) };
}

function ofRequests(rule: Rule): Rule {
  if (checked(rule).kind === "lease" && (rule as LeaseRule).holder !== undefined) {
    throw new TypeError("a lease of requests has no holder: each request is one of its own");
  }
  return rule;
}
