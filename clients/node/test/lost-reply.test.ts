/** A connection that breaks between a call and its reply: the call is not sent again unless the user wants that. */

import assert from "node:assert/strict";
import { connect, createServer, type Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";
import { Limiter, LostReplyError, lease, sliding } from "redis-rl";
import { clients } from "./support/clients.js";
import { Cluster } from "./support/cluster.js";
import { freePort, Server } from "./support/server.js";

/** Passes everything on, until it is told to swallow the reply to the next call and close the connection instead. */
class LossyProxy {
  readonly port: number;
  #armed = false;
  readonly #sockets = new Set<Socket>();
  readonly #server;

  constructor(port: number, target: () => number) {
    this.port = port;
    this.#server = createServer((client) => {
      const server = connect(target(), "127.0.0.1");
      let swallow = false;
      for (const socket of [client, server]) {
        this.#sockets.add(socket);
        socket.on("error", () => {});
        socket.on("close", () => {
          client.destroy();
          server.destroy();
        });
      }
      client.on("data", (data) => {
        if (this.#armed && data.includes("RL.")) {
          this.#armed = false;
          swallow = true;
        }
        server.write(data);
      });
      server.on("data", (data) => (swallow ? client.destroy() : client.write(data)));
    });
  }

  async listen(): Promise<void> {
    await new Promise<void>((resolve) => this.#server.listen(this.port, "127.0.0.1", resolve));
  }

  arm(): void {
    this.#armed = true;
  }

  close(): void {
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }
}

const rule = sliding("10/minute");

for (const shape of ["a server", "a cluster"]) {
  describe(shape, () => {
    let servers: readonly Server[];
    let proxy: LossyProxy;

    before(async () => {
      const port = await freePort();
      if (shape === "a cluster") {
        const announce = ["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", String(port)];
        servers = (await Cluster.start({ mode: "module", primaries: 1, arguments: announce })).primaries;
      } else {
        servers = [await Server.start({ mode: "module" })];
      }
      proxy = new LossyProxy(port, () => servers[0]?.port ?? 0);
      await proxy.listen();
    });
    after(async () => {
      proxy.close();
      await Promise.all(servers.map((server) => server.stop()));
    });

    for (const kind of clients) {
      const open = () => (shape === "a cluster" ? kind.openCluster([proxy.port]) : kind.open(proxy.port));

      test(`${kind.name}: a call is counted once, and the caller is told`, async () => {
        const { client, close } = await open();
        const limiter = new Limiter(client, { timeout: 10_000 });
        const key = `once:${kind.name}`;
        await limiter.hit(key, rule);
        proxy.arm();
        await assert.rejects(limiter.hit(key, rule), LostReplyError);
        await sleep(1100); // For a second nothing is sent.
        // The connection works again, and each reply belongs to its call.
        assert.equal((await limiter.peek(key, rule, { cost: 0 })).used, 2);
        const states = await Promise.all(
          Array.from({ length: 5 }, (_, i) => limiter.peek(i % 2 ? "another" : key, rule, { cost: 0 })),
        );
        assert.deepEqual(
          states.map(({ used }) => used),
          [2, 0, 2, 0, 2],
        );
        close();
      });

      test(`${kind.name}: what does no harm when sent twice is sent again`, async () => {
        const { client, close } = await open();
        const key = `again:${kind.name}`;
        const limiter = new Limiter(client, { timeout: 10_000 });
        await limiter.hit(key, rule);
        proxy.arm();
        assert.equal((await limiter.peek(key, rule, { cost: 0 })).used, 1);
        proxy.arm();
        assert.equal((await limiter.acquire(`${key}:lease`, lease(2, 60), { holder: "me" })).used, 1);
        proxy.arm();
        assert.equal(
          await limiter.release(`${key}:lease`, "me"),
          0,
          "it was released by the call whose reply was lost",
        );
        proxy.arm();
        assert.equal(await limiter.reset(key, rule), 0);
        close();
      });
    }
  });
}
