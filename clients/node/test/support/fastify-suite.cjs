/**
 * Loaded before the tests of @fastify/rate-limit for Redis: registers the plugin with our store where they give it a
 * client, and puts a server of ours in the place of the one that they expect.
 */

const Module = require("node:module");
const load = Module._load;
Module._load = function (request, parent, ...rest) {
  const loaded = load.call(this, request, parent, ...rest);
  if (request === "ioredis") {
    return class extends loaded.Redis {
      constructor(options) {
        super({ ...options, port: Number(process.env.SUITE_PORT) });
      }
    };
  }
  if (request === "../index" && parent.filename.endsWith("redis-rate-limit.test.js")) {
    return Object.assign((app, options, ...more) => loaded(app, withOurStore(options), ...more), loaded);
  }
  return loaded;
};

function withOurStore({ redis, nameSpace, ...options }) {
  const { Limiter } = load("redis-rl", module);
  const { fastifyRateLimitStore } = load("redis-rl/fastify-rate-limit", module);
  // Their tests delete their keys between them; ours have other names.
  const prefix = `${process.hrtime.bigint()}:`;
  const limiter = new Limiter(redis, { prefix, timeout: 10_000, logger: { warn() {} } });
  const algorithm = process.env.SUITE_ALGORITHM;
  return { ...options, store: fastifyRateLimitStore(limiter, { algorithm, timeout: 10_000, name: nameSpace }) };
}
