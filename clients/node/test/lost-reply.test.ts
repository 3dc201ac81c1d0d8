/** A connection that breaks between a call and its reply: the call is not sent again unless the user wants that. */

import assert from "node:assert/strict";
import { connect, createServer, type Socket } from "node:net";
import { after, before, describe, test } from "node:test";
import { LostReplyError, RateLimiter, sliding } from "redis-rl";
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
        const limiter = new RateLimiter(client);
        const key = `once:${kind.name}`;
        await limiter.limit(key, rule);
        proxy.arm();
        await assert.rejects(limiter.limit(key, rule), LostReplyError);
        // The connection works again, and each reply belongs to its call.
        const states = await Promise.all(
          Array.from({ length: 5 }, (_, i) => limiter.peek(i % 2 ? "another" : key, rule, { cost: 0 })),
        );
        assert.deepEqual(
          states.map(({ used }) => used),
          [2, 0, 2, 0, 2],
        );
        close();
      });

      test(`${kind.name}: it is sent again on request, and what does no harm always is`, async () => {
        const { client, close } = await open();
        const key = `again:${kind.name}`;
        const again = new RateLimiter(client, { resendLost: true });
        await again.limit(key, rule);
        proxy.arm();
        assert.equal((await again.limit(key, rule)).used, 3, "counted twice");
        const once = new RateLimiter(client);
        await once.peek(key, rule);
        proxy.arm();
        assert.equal((await once.peek(key, rule, { cost: 0 })).used, 3);
        close();
      });
    }
  });
}
