/** The storage and the guard inside of Nest, over real HTTP, on both of its platforms. */

import "reflect-metadata";
import assert from "node:assert/strict";
import { fork } from "node:child_process";
import { once } from "node:events";
import { join } from "node:path";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Controller, Get, HttpCode, type INestApplication, Module, Post, type Type } from "@nestjs/common";
import { APP_GUARD, NestFactory, Reflector } from "@nestjs/core";
import { FastifyAdapter } from "@nestjs/platform-fastify";
import {
  SkipThrottle,
  Throttle,
  ThrottlerGuard,
  ThrottlerModule,
  type ThrottlerModuleOptions,
  type ThrottlerOptions,
} from "@nestjs/throttler";
import { type Connection, Limiter, UnavailableError } from "redis-rl";
import { NestThrottlerStorage, RlThrottlerGuard } from "redis-rl/nestjs";
import { clients, type OpenClient } from "./support/clients.js";
import { modes, Server } from "./support/server.js";

const nowhere: Connection = { keyPrefix: "", send: () => Promise.reject(new UnavailableError("no server")) };

/** What decorators do in an application, where TypeScript is told to compile them. */
function decorated(target: Type, controller: string, routes: Record<string, readonly MethodDecorator[]>): Type {
  for (const [name, decorators] of Object.entries(routes)) {
    const descriptor = Object.getOwnPropertyDescriptor(target.prototype, name) as PropertyDescriptor;
    for (const decorator of decorators) decorator(target.prototype, name, descriptor);
  }
  Controller(controller)(target);
  return target;
}

function controllers(): Type[] {
  class First {
    plain() {
      return "in";
    }
    other() {
      return "in";
    }
    route() {
      return "in";
    }
    skipped() {
      return "in";
    }
    item() {
      return "in";
    }
  }
  return [
    decorated(First, "first", {
      plain: [Get("plain")],
      other: [Get("other")],
      route: [Get("route"), Throttle({ default: { limit: 1, ttl: 60_000 } })],
      skipped: [Get("skipped"), SkipThrottle()],
      item: [Post("item/:id"), HttpCode(200)],
    }),
  ];
}

interface Opened {
  readonly url: string;
  readonly nest: INestApplication;
  get(path: string, key?: string): Promise<Response>;
}

async function opened(options: ThrottlerModuleOptions, guard: Type, platform = "express"): Promise<Opened> {
  class App {}
  Module({
    imports: [ThrottlerModule.forRoot(options)],
    controllers: controllers(),
    providers: [{ provide: APP_GUARD, useClass: guard }],
  })(App);
  const settings = { logger: false, abortOnError: false } as const;
  const nest =
    platform === "fastify"
      ? await NestFactory.create(App, new FastifyAdapter(), settings)
      : await NestFactory.create(App, settings);
  await nest.listen(0, "127.0.0.1");
  const url = (await nest.getUrl()).replace("[::1]", "127.0.0.1");
  const get = (path: string, key = "k") => fetch(`${url}/first/${path}`, { headers: { "x-key": key } });
  return { url, nest, get };
}

// biome-ignore lint/suspicious/noExplicitAny: as Nest declares it.
const getTracker = (request: Record<string, any>) => request.headers["x-key"];

describe("the storage by itself", () => {
  let server: Server;
  let open: OpenClient;
  let limiter: Limiter;
  let prefixes = 0;

  before(async () => {
    server = await Server.start({ mode: modes[0] as "module", frozenAt: 1_700_000_000_000 });
    open = (await clients[0]?.open(server.port)) as OpenClient;
    limiter = new Limiter(open.client, { timeout: 10_000 });
  });
  after(async () => {
    open.close();
    await server.stop();
  });

  /** A storage with keys and a clock of its own. */
  let now = 1_700_000_000_000;
  const fresh = (denyCache = false) => {
    const storage = new NestThrottlerStorage(limiter, { prefix: `${prefixes++}:`, denyCache, timeout: 10_000 });
    const pass = (ms: number) => {
      now += ms;
      server.setTime(now);
    };
    return { storage, pass };
  };

  test("a denial starts a block once: calls meanwhile neither count nor prolong it, its end gives the whole quota", async () => {
    for (const block of [3000, 10_000, 20_000]) {
      const { storage, pass } = fresh();
      const ask = () => storage.increment("k", 10_000, 3, block, "default");
      for (let used = 1; used <= 3; used++) {
        assert.deepEqual(await ask(), { totalHits: used, timeToExpire: 10, isBlocked: false, timeToBlockExpire: 0 });
      }
      const seconds = block / 1000;
      const denied = { totalHits: 4, timeToExpire: seconds, isBlocked: true, timeToBlockExpire: seconds };
      assert.deepEqual(await ask(), denied);
      for (let left = seconds - 1; left > 0; left--) {
        pass(1000);
        assert.deepEqual(await ask(), { ...denied, timeToExpire: left, timeToBlockExpire: left });
      }
      pass(999);
      assert.equal((await ask()).isBlocked, true);
      pass(1);
      for (let used = 1; used <= 3; used++) assert.equal((await ask()).totalHits, used);
      assert.equal((await ask()).isBlocked, true);
    }
  });

  test("100 at once: the limit passes, one block begins", async () => {
    const { storage } = fresh();
    const records = await Promise.all(
      Array.from({ length: 100 }, () => storage.increment("k", 10_000, 5, 7000, "default")),
    );
    assert.equal(records.filter(({ isBlocked }) => !isBlocked).length, 5);
    for (const { isBlocked, timeToBlockExpire } of records) assert.equal(timeToBlockExpire, isBlocked ? 7 : 0);
  });

  test("without a block a denial lasts until the request fits", async () => {
    for (const block of [0, -1]) {
      const { storage, pass } = fresh();
      const ask = () => storage.increment("k", 10_000, 2, block, "default");
      await ask();
      pass(4000);
      await ask();
      assert.deepEqual(await ask(), { totalHits: 3, timeToExpire: 6, isBlocked: true, timeToBlockExpire: 6 });
      pass(5500);
      assert.equal((await ask()).timeToBlockExpire, 1);
      pass(500);
      assert.equal((await ask()).totalHits, 2);
    }
  });

  test("limits and times that are no whole numbers, 0 and Infinity", async () => {
    const { storage, pass } = fresh();
    const ask = (ttl: number, limit: number, block: number, name: string) =>
      storage.increment("k", ttl, limit, block, name);
    assert.equal((await ask(1500.5, 1, 0, "a")).timeToExpire, 2);
    pass(1500);
    assert.equal((await ask(1500.5, 1, 0, "a")).isBlocked, true);
    pass(1);
    assert.equal((await ask(1500.5, 1, 0, "a")).isBlocked, false);
    assert.equal((await ask(60_000, 1.5, 0, "b")).isBlocked, false);
    assert.equal((await ask(60_000, 1.5, 0, "b")).isBlocked, true);
    const none = { totalHits: 1, timeToExpire: 60, isBlocked: true, timeToBlockExpire: 60 };
    assert.deepEqual(await ask(60_000, 0, 0, "c"), none);
    assert.deepEqual(await ask(60_000, 0, 5000, "d"), { ...none, timeToExpire: 5, timeToBlockExpire: 5 });
    for (let i = 0; i < 3; i++) {
      assert.equal((await ask(60_000, Number.POSITIVE_INFINITY, 60_000, "e")).isBlocked, false);
    }
    await assert.rejects(ask(60_000, Number.NaN, 0, "f"), RangeError);
    await assert.rejects(ask(0, 5, 0, "g"), RangeError);
    assert.equal((await ask(Number.POSITIVE_INFINITY, 5, 0, "h")).isBlocked, false);
  });

  test("names and windows are limits of their own, also with a generateKey that leaves them out", async () => {
    const { storage } = fresh();
    for (const [ttl, name] of [
      [1000, "short"],
      [60_000, "short"],
      [60_000, "long"],
    ] as const) {
      assert.equal((await storage.increment("k", ttl, 1, 0, name)).isBlocked, false);
      assert.equal((await storage.increment("k", ttl, 1, 0, name)).isBlocked, true);
    }
  });

  test("a flood at one key does not reach the server, and is told of the block", async () => {
    const { storage } = fresh(true);
    const before = Number(await server.info("stats", "total_commands_processed"));
    await storage.increment("k", 10_000, 1, 20_000, "default");
    for (let i = 0; i < 200; i++) {
      const { isBlocked, timeToBlockExpire } = await storage.increment("k", 10_000, 1, 20_000, "default");
      assert.deepEqual([isBlocked, timeToBlockExpire], [true, 20]);
    }
    const commands = Number(await server.info("stats", "total_commands_processed")) - before;
    assert.ok(commands < 50, `${commands}`);
  });

  test("several throttlers in one decision: all count a request, or none does", async () => {
    const { storage, pass } = fresh();
    const ask = (first: number, second: number, key = "k") =>
      storage.incrementAll([
        { key: `${key}1`, ttl: 1000, limit: first, blockDuration: 1000, name: "short", tracker: key },
        { key: `${key}2`, ttl: 60_000, limit: second, blockDuration: 30_000, name: "long", tracker: key },
      ]);
    for (let i = 1; i <= 2; i++)
      assert.deepEqual(
        (await ask(2, 5)).map(({ totalHits }) => totalHits),
        [i, i],
      );
    const denied = await ask(2, 5);
    assert.deepEqual(
      denied.map(({ isBlocked, timeToBlockExpire }) => [isBlocked, timeToBlockExpire]),
      [
        [true, 1],
        [false, 0],
      ],
    );
    pass(1000);
    assert.deepEqual(
      (await ask(2, 5)).map(({ totalHits }) => totalHits),
      [1, 3],
    );
    assert.equal((await ask(2, 5)).length, 2);
    pass(1000);
    assert.deepEqual(
      (await ask(2, 5)).map(({ totalHits }) => totalHits),
      [1, 5],
    );
    const blocked = await ask(2, 5);
    assert.deepEqual(
      blocked.map(({ isBlocked }) => isBlocked),
      [false, true],
    );
  });

  test("an empty key is refused, and an error that stays is thrown", async () => {
    const { storage } = fresh();
    await assert.rejects(storage.increment("", 1000, 1, 0, "default"), { status: 403 });
    const allowing = new NestThrottlerStorage(limiter, { withoutIdentity: "allow" });
    assert.equal((await allowing.increment("", 1000, 0, 0, "default")).isBlocked, false);
    await server.run("HSET", "broken:default-1s:{k}", "a", "b");
    const broken = new NestThrottlerStorage(limiter, { prefix: "broken:", whenUnavailable: "open" });
    await assert.rejects(broken.increment("k", 1000, 1, 0, "default"), /WRONGTYPE/);
  });

  test("the server is unavailable", async () => {
    const away = new Limiter(nowhere, { logger: { warn() {} } });
    const closed = new NestThrottlerStorage(away);
    await assert.rejects(closed.increment("k", 1000, 1, 1000, "default"), { status: 503 });
    const letting = new NestThrottlerStorage(away, { whenUnavailable: "open" });
    const local = new NestThrottlerStorage(away, { whenUnavailable: "local" });
    for (let i = 0; i < 4; i++) {
      assert.equal((await letting.increment("k", 60_000, 2, 5000, "default")).isBlocked, false);
      const { isBlocked, timeToBlockExpire } = await local.increment("k", 60_000, 2, 5000, "default");
      assert.deepEqual([isBlocked, timeToBlockExpire], i < 2 ? [false, 0] : [true, 5]);
    }
  });
});

for (const platform of ["express", "fastify"]) {
  describe(`Nest on ${platform}`, () => {
    let server: Server;
    let open: OpenClient;
    let limiter: Limiter;
    const apps: INestApplication[] = [];

    before(async () => {
      server = await Server.start({ mode: modes[0] as "module" });
      open = (await clients[0]?.open(server.port)) as OpenClient;
      limiter = new Limiter(open.client, { timeout: 10_000 });
    });
    after(async () => {
      await Promise.all(apps.map((app) => app.close()));
      open.close();
      await server.stop();
    });

    async function app(prefix: string, throttlers: ThrottlerOptions[], guard: Type = ThrottlerGuard) {
      const storage = new NestThrottlerStorage(limiter, { prefix, timeout: 10_000 });
      const made = await opened({ throttlers, storage, getTracker }, guard, platform);
      apps.push(made.nest);
      return made;
    }

    for (const guard of [ThrottlerGuard, RlThrottlerGuard]) {
      test(`${guard.name}: limits, routes, headers`, async () => {
        const { get, url } = await app(`${guard.name}:`, [{ ttl: 60_000, limit: 3 }], guard);
        const answers: Response[] = [];
        for (let i = 0; i < 5; i++) answers.push(await get("plain"));
        assert.deepEqual(
          answers.map(({ status }) => status),
          [200, 200, 200, 429, 429],
        );
        const header = (name: string) => answers.map(({ headers }) => headers.get(name));
        assert.deepEqual(header("x-ratelimit-limit").slice(0, 3), ["3", "3", "3"]);
        assert.deepEqual(header("x-ratelimit-remaining").slice(0, 3), ["2", "1", "0"]);
        assert.deepEqual(header("x-ratelimit-reset").slice(0, 3), ["60", "60", "60"]);
        assert.deepEqual(header("retry-after").slice(3), ["60", "60"]);
        assert.equal((await get("other")).status, 200, "another route is another limit");
        assert.equal((await get("plain", "someone else")).status, 200);
        assert.deepEqual([(await get("route")).status, (await get("route")).status], [200, 429]);
        for (let i = 0; i < 5; i++) assert.equal((await get("skipped")).status, 200);
        const post = (id: number) => fetch(`${url}/first/item/${id}`, { method: "POST", headers: { "x-key": "k" } });
        const posts = [await post(1), await post(2), await post(3), await post(4)].map(({ status }) => status);
        assert.deepEqual(posts, [200, 200, 200, 429], "by the route, and not by its path");
      });
    }

    test("several named throttlers: one decision, and a plain Retry-After", async () => {
      const throttlers = [
        { name: "short", ttl: 1000, limit: 2 },
        { name: "long", ttl: 60_000, limit: 100, blockDuration: 5000 },
      ];
      const { get } = await app("several:", throttlers, RlThrottlerGuard);
      const answers = [await get("plain"), await get("plain"), await get("plain")];
      assert.deepEqual(
        answers.map(({ status }) => status),
        [200, 200, 429],
      );
      assert.equal(answers[1]?.headers.get("x-ratelimit-remaining-long"), "98");
      assert.equal(answers[2]?.headers.get("retry-after"), "1");
      await sleep(1100);
      assert.equal((await get("plain")).headers.get("x-ratelimit-remaining-long"), "97", "the denial was not counted");
    });

    test("a request without a tracker is refused", async () => {
      const { nest, url } = await app("anonymous:", [{ ttl: 60_000, limit: 3 }], RlThrottlerGuard);
      assert.ok(nest);
      assert.equal((await fetch(`${url}/first/plain`)).status, 403);
    });

    test("ignoreUserAgents, setHeaders", async () => {
      const throttlers = [{ ttl: 60_000, limit: 1, ignoreUserAgents: [/friend/], setHeaders: false }];
      const { url } = await app("ignored:", throttlers, RlThrottlerGuard);
      const as = async (agent: string) => {
        const answer = await fetch(`${url}/first/plain`, { headers: { "x-key": "k", "user-agent": agent } });
        return [answer.status, answer.headers.get("x-ratelimit-limit"), answer.headers.get("retry-after")];
      };
      for (let i = 0; i < 3; i++) assert.deepEqual(await as("a friend"), [200, null, null]);
      assert.deepEqual(
        [await as("other"), await as("other")],
        [
          [200, null, null],
          [429, null, null],
        ],
      );
    });

    test("the server is unavailable: 503, or all pass", async () => {
      const away = new Limiter(nowhere, { logger: { warn() {} } });
      for (const guard of [ThrottlerGuard, RlThrottlerGuard]) {
        for (const [whenUnavailable, status] of [
          ["closed", 503],
          ["open", 200],
        ] as const) {
          const storage = new NestThrottlerStorage(away, { whenUnavailable });
          const { nest, get } = await opened({ throttlers: [{ ttl: 1000, limit: 1 }], storage }, guard, platform);
          apps.push(nest);
          for (let i = 0; i < 3; i++) assert.equal((await get("plain")).status, status);
        }
      }
    });
  });
}

test("two processes deny at the same time: the end of the block gives both the whole quota", async (t) => {
  const server = await Server.start({ mode: "module" });
  const open = (await clients[0]?.open(server.port)) as OpenClient;
  t.after(async () => {
    open.close();
    await server.stop();
  });
  const storages = [0, 1].map(() => new NestThrottlerStorage(new Limiter(open.client), { timeout: 5000 }));
  const ask = (i: number) => (storages[i % 2] as NestThrottlerStorage).increment("k", 60_000, 2, 300, "default");
  const first = await Promise.all(Array.from({ length: 20 }, (_, i) => ask(i)));
  assert.equal(first.filter(({ isBlocked }) => isBlocked).length, 18);
  await sleep(350);
  for (let i = 0; i < 2; i++) assert.equal((await ask(i)).isBlocked, false);
});

test("a generateKey that hands on a long tracker makes no long key", async () => {
  const keys: number[] = [];
  const connection: Connection = {
    keyPrefix: "",
    send: async (command) => {
      keys.push(Math.max(...command.map((word) => word.length)));
      throw new UnavailableError("no server");
    },
  };
  const storage = new NestThrottlerStorage(new Limiter(connection, { mode: "module", logger: { warn() {} } }));
  const tracker = "x".repeat(60_000);
  const asked = [{ key: `route-${tracker}`, tracker, ttl: 1000, limit: 1, blockDuration: 0, name: "default" }];
  await assert.rejects(storage.incrementAll(asked), /not available/);
  assert.ok(Math.max(...keys) < 2000, String(keys));
});

test("a tracker may be a number, as the id of a user", async () => {
  const storage = new NestThrottlerStorage(new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } }));
  const asked = { key: "route", ttl: 60_000, limit: 1, blockDuration: 0, name: "default" };
  for (const [tracker, isBlocked] of [7, 8, 7].map((id, i) => [id, i === 2] as const)) {
    const [record] = await storage.incrementAll([{ ...asked, tracker: tracker as never }]);
    assert.equal(record?.isBlocked, isBlocked);
  }
});

test("the guard limits what has no HTTP response: a message of a WebSocket, a subscription of GraphQL", async () => {
  const storage = new NestThrottlerStorage(new Limiter(nowhere, { whenUnavailable: "local", logger: { warn() {} } }));
  class Gateway {}
  const handler = () => {};
  for (const [i, response] of [{ text: "hello" }, undefined].entries()) {
    class Guard extends RlThrottlerGuard {
      protected override getRequestResponse() {
        return { req: { from: `client ${i}` }, res: response as object };
      }
      protected override getTracker = async ({ from }: Record<string, string>) => from as string;
    }
    const options = [{ ttl: 60_000, limit: 2, ignoreUserAgents: [/friend/] }];
    const guard = new Guard(options, storage, new Reflector());
    await guard.onModuleInit();
    const context = { getHandler: () => handler, getClass: () => Gateway } as never;
    assert.deepEqual([await guard.canActivate(context), await guard.canActivate(context)], [true, true]);
    await assert.rejects(guard.canActivate(context), { status: 429 });
  }
});

test("the guard needs the storage", async () => {
  await assert.rejects(opened([{ ttl: 1000, limit: 1 }], RlThrottlerGuard), /needs storage/);
});

test("1,000 requests at once over four processes: exactly 5 pass, and no time-out", async (t) => {
  const server = await Server.start({ mode: "module" });
  t.after(() => server.stop());
  const children = Array.from({ length: 4 }, () => fork(join(__dirname, "support/nest-app.js"), [String(server.port)]));
  t.after(() => {
    for (const child of children) child.kill("SIGKILL");
  });
  const ports = await Promise.all(children.map(async (child) => (await once(child, "message"))[0] as number));
  const statuses = await Promise.all(
    Array.from({ length: 1000 }, async (_, i) => {
      const answer = await fetch(`http://127.0.0.1:${ports[i % 4]}/`);
      await answer.arrayBuffer();
      return answer.status;
    }),
  );
  const counts: Record<number, number> = {};
  for (const status of statuses) counts[status] = (counts[status] ?? 0) + 1;
  assert.deepEqual(counts, { 200: 5, 429: 995 });
});
