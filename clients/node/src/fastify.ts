/** A plugin and a hook for Fastify, versions 4 and 5. */

import type { FastifyInstance, FastifyPluginCallback, FastifyReply, FastifyRequest } from "fastify";
import { type GuardOptions, guard, type Limits } from "./guard.js";
import { routeName } from "./identity.js";
import type { Limiter } from "./limiter.js";

type Hook = (request: FastifyRequest, reply: FastifyReply) => Promise<unknown>;

export type RateLimitOptions = GuardOptions<FastifyRequest, (request: FastifyRequest, reply: FastifyReply) => unknown>;

export interface PluginOptions extends RateLimitOptions {
  readonly limiter: Limiter;
  /** The limits of the routes that have none of their own, all of which count together. */
  readonly limits?: Limits<FastifyRequest>;
}

/** The limits of a route, perhaps with options that differ from the plugin's; `false` for none. */
export type RouteLimits =
  | Limits<FastifyRequest>
  | (RateLimitOptions & { readonly limits: Limits<FastifyRequest> })
  | false;

declare module "fastify" {
  interface FastifyContextConfig {
    rateLimit?: RouteLimits;
  }
}

/**
 * ```ts
 * await app.register(rateLimitPlugin, { limiter, limits: sliding("100/minute") });
 * app.get("/item/:id", { config: { rateLimit: sliding("5/minute") } }, handler);
 * app.get("/health", { config: { rateLimit: false } }, handler);
 * ```
 *
 * Of routes that are declared after it.
 */
export const rateLimitPlugin: FastifyPluginCallback<PluginOptions> = Object.assign(
  (app: FastifyInstance, { limiter, limits, ...options }: PluginOptions, done: () => void) => {
    const ofAll = limits && hook(limiter, limits, options, () => undefined);
    app.addHook("onRoute", (route) => {
      const own = limited.has(route) ? false : route.config?.rateLimit;
      const hooks = [route.onRequest ?? []].flat();
      if (own !== undefined && own !== false) {
        const { limits, ...more } = typeof own === "object" && "limits" in own ? own : { limits: own };
        hooks.push(rateLimit(limiter, limits, { ...options, ...more }));
        limited.add(route);
      } else if (own === undefined && ofAll) hooks.push(ofAll);
      route.onRequest = hooks;
    });
    done();
  },
  // It is for the application that registers it, and not for a part of its own.
  { [Symbol.for("skip-override")]: true, [Symbol.for("fastify.display-name")]: "redis-rl" },
);

/** Routes whose own limits a plugin has seen to, within which another one may be. */
const limited = new WeakSet<object>();

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
export function rateLimit(limiter: Limiter, limits: Limits<FastifyRequest>, options: RateLimitOptions = {}): Hook {
  return hook(
    limiter,
    limits,
    options,
    ({ method, routeOptions: { url, method: methods = method } }) =>
      // A route at the root of a plugin is two in Fastify: with a slash behind it, and without.
      url && routeName([methods].flat(), url.replace(/(?<=.)\/$/, "")),
  );
}

function hook(
  limiter: Limiter,
  limits: Limits<FastifyRequest>,
  options: RateLimitOptions,
  routeOf: (request: FastifyRequest) => string | undefined,
): Hook {
  const admit = guard(limiter, limits, options, ({ raw }) => raw);
  return async (request, reply) => {
    const { refusal, onDenied } = await admit(request, routeOf(request), reply.raw);
    if (!refusal) return undefined;
    reply.code(refusal.status);
    if (!onDenied) return reply.type(refusal.type).send(refusal.body);
    await onDenied(request, reply);
    return reply;
  };
}
