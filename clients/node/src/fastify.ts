/** A hook for Fastify, versions 4 and 5. */

import type { FastifyReply, FastifyRequest } from "fastify";
import { Guard, type GuardOptions, type Limits } from "./guard.js";
import { clientAddress } from "./identity.js";
import type { Limiter } from "./limiter.js";

export type { CostOf, KeyOf, Limit, Limits, RuleOf } from "./guard.js";

export interface RateLimitOptions extends GuardOptions<FastifyRequest> {
  /** Answers a denied request, in place of the problem document with status 429. The headers are set already. */
  readonly onDenied?: (request: FastifyRequest, reply: FastifyReply) => unknown;
}

/**
 * A hook `onRequest`, of a route or of all.
 *
 * ```ts
 * app.addHook("onRequest", rateLimit(limiter, sliding("100/minute", { name: "all" })));
 * app.get("/item/:id", { onRequest: rateLimit(limiter, sliding("5/minute")) }, handler);
 * ```
 *
 * A rule without a name counts each route by itself, also where the hook is one of all routes.
 */
export function rateLimit(
  limiter: Limiter,
  limits: Limits<FastifyRequest>,
  options: RateLimitOptions = {},
): (request: FastifyRequest, reply: FastifyReply) => Promise<unknown> {
  const identify = clientAddress();
  const guard = new Guard<FastifyRequest>(limiter, limits, options, ({ raw }) => identify(raw), "onDenied");
  return async (request, reply) => {
    const over = new Promise<void>((resolve) => reply.raw.once("close", resolve));
    const { url } = request.routeOptions;
    const { refusal, headers, end } = await guard.admit(request, url && `${request.method} ${url}`);
    if (end) over.then(end);
    for (const [name, value] of Object.entries(headers)) {
      const before = reply.getHeader(name);
      reply.header(name, before === undefined ? value : `${before}, ${value}`);
    }
    if (!refusal) return undefined;
    reply.code(refusal.status);
    if (refusal.status !== 429 || !options.onDenied) return reply.type(refusal.type).send(refusal.body);
    await options.onDenied(request, reply);
    return reply;
  };
}
