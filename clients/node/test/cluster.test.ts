/** Clusters: every call goes to its node at once, reads go to replicas on request, and a slot on the move is waited for. */

import assert from "node:assert/strict";
import { after, before, describe, test } from "node:test";
import { fixed, Limiter, lease, sliding, UnavailableError } from "redis-rl";
import { clients } from "./support/clients.js";
import { Cluster } from "./support/cluster.js";
import { eventually, modes, type Server } from "./support/server.js";

/** What a peek is on the wire. */
const sentAs = { module: "rl.peek", functions: "fcall_ro", script: "evalsha_ro" };

for (const mode of modes) {
  describe(mode, () => {
    let cluster: Cluster;
    let nodes: readonly Server[];

    before(async () => {
      cluster = await Cluster.start({ mode, replicas: true });
      nodes = [...cluster.primaries, ...cluster.replicas];
    });
    after(() => cluster.stop());

    for (const kind of clients) {
      test(`${kind.name}: no call goes astray`, async () => {
        const { client, close } = await kind.openCluster(cluster.ports, { keyPrefix: "{pre}fix:" });
        const prefixed = new Limiter(client, { mode, timeout: 10_000 });
        // A queue that is short for the user's own calls is no limit of ours.
        const plain = await kind.openCluster(cluster.ports, { defaults: { commandsQueueMaxLength: 4 } } as object);
        const limiter = new Limiter(plain.client, { prefix: `${kind.name}:`, timeout: 10_000 });
        // Each node gets the library or the script once.
        await Promise.all(Array.from({ length: 30 }, (_, i) => limiter.hit(`warm${i}`, sliding("5/minute"))));
        for (const node of nodes) await node.run("CONFIG", "RESETSTAT");

        const results = await Promise.all(
          Array.from({ length: 60 }, (_, i) => limiter.hit(`k${i}`, sliding("5/minute"))),
        );
        assert.ok(results.every(({ used }) => used === 1));
        const counters = await Promise.all(
          Array.from({ length: 30 }, (_, i) => limiter.hit(`f${i}`, fixed("5/minute", "9/hour", { anchored: true }))),
        );
        assert.ok(counters.every(({ used, each }) => used === 1 && each.length === 2));
        const rules = [
          { key: "{org7}:rpm", rule: sliding("5/minute") },
          { key: "{org7}:busy", rule: lease(5, 60), holder: "me" },
        ] as const;
        assert.equal((await limiter.all(rules)).allowed, true);
        assert.equal((await prefixed.hit("k", sliding("5/minute"))).allowed, true);
        for (const status of ["MOVED", "ASK"]) {
          assert.equal(await Cluster.sum(nodes, "errorstats", `errorstat_${status}`), 0, status);
        }
        await assert.rejects(
          limiter.all([
            { key: "a", rule: sliding("5/minute") },
            { key: "b", rule: sliding("5/minute") },
          ]),
          /CROSSSLOT|same slot/i,
        );
        close();
        plain.close();
      });
    }

    for (const kind of clients) {
      test(`${kind.name}: a peek goes where the client reads`, async () => {
        const peeks = async (replicas: boolean) => {
          const { client, close } = await kind.openCluster(cluster.ports, { replicas });
          const limiter = new Limiter(client, { timeout: 10_000 });
          // Each primary has the library or the script before its replica is asked.
          await Promise.all(Array.from({ length: 30 }, (_, i) => limiter.hit(`warm${i}`, sliding("5/minute"))));
          for (const primary of cluster.primaries) await primary.run("WAIT", 1, 10_000);
          await Promise.all(Array.from({ length: 60 }, (_, i) => limiter.peek(`k${i}`, sliding("5/minute"))));
          for (const node of nodes) await node.run("CONFIG", "RESETSTAT");
          await Promise.all(Array.from({ length: 60 }, (_, i) => limiter.peek(`k${i}`, sliding("5/minute"))));
          close();
          return Cluster.sum(cluster.replicas, "commandstats", `cmdstat_${sentAs[mode]}`);
        };
        assert.equal(await peeks(false), 0);
        const there = await peeks(true);
        // node-redis takes primary and replica in turn, ioredis the replica.
        assert.ok(there >= 20 && there <= 60, `${there} of 60`);
      });
    }

    if (mode !== "module") return;
    for (const kind of clients) {
      test(`${kind.name}: a call waits for a slot on the move`, async () => {
        const { client, close } = await kind.openCluster(cluster.ports);
        const key = `moving:${kind.name}`;
        // A slot is given away empty, and other tests may have left a key in it.
        for (const primary of cluster.primaries) await primary.run("FLUSHALL");
        const rule = fixed("5/minute");
        const slot = Number(await cluster.primaries[0]?.run("CLUSTER", "KEYSLOT", key));
        const owner = cluster.primaries[Math.floor((slot * 3) / 16384)] as Server;
        const target = cluster.primaries.find((server) => server !== owner) as Server;
        const [from, to] = [await owner.run("CLUSTER", "MYID"), await target.run("CLUSTER", "MYID")].map(String);
        await target.run("CLUSTER", "SETSLOT", slot, "IMPORTING", from ?? "");
        await owner.run("CLUSTER", "SETSLOT", slot, "MIGRATING", to ?? "");
        for (const node of nodes) await node.run("CONFIG", "RESETSTAT");
        const refusals = () => Cluster.sum(nodes, "errorstats", "errorstat_TRYAGAIN");

        // Each client knows the cluster before the deadline is a short one.
        const patient = new Limiter(client, { timeout: 15_000 });
        await patient.hit("known", rule);
        const impatient = new Limiter(client, { timeout: 200 });
        await assert.rejects(impatient.hit(key, rule), UnavailableError);
        const before = await refusals();

        const other = await impatient.hit(`other:${kind.name}`, rule);
        assert.equal(other.allowed, true, "other slots go on");
        const waiting = patient.hit(key, rule);
        await eventually("it was refused again", async () => (await refusals()) > before + 1);
        for (const server of [target, owner, ...cluster.primaries]) {
          await server.run("CLUSTER", "SETSLOT", slot, "NODE", to ?? "");
        }
        assert.equal((await waiting).used, 1);
        close();
      });
    }
  });
}
