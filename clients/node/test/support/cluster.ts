/** Clusters: primaries with an equal share of the slots each, and replicas of them. */

import { eventually, freePort, Server, type ServerOptions } from "./server.js";

const SLOTS = 16384;

export class Cluster {
  readonly primaries: readonly Server[];
  readonly replicas: readonly Server[];

  private constructor(primaries: readonly Server[], replicas: readonly Server[]) {
    this.primaries = primaries;
    this.replicas = replicas;
  }

  static async start(options: ServerOptions & { primaries?: number; replicas?: boolean } = {}): Promise<Cluster> {
    const count = options.primaries ?? 3;
    const node = async () => {
      const bus = await freePort();
      const cluster = ["--cluster-enabled", "yes", "--cluster-port", String(bus), "--cluster-node-timeout", "3000"];
      // A replica shows in CLUSTER SLOTS once it has received something: a PING will do.
      cluster.push("--repl-ping-replica-period", "1", "--repl-diskless-sync-delay", "0");
      return Server.start({ ...options, arguments: [...cluster, ...(options.arguments ?? [])] });
    };
    const all = await Promise.all(Array.from({ length: options.replicas ? 2 * count : count }, node));
    const [primaries, replicas] = [all.slice(0, count), all.slice(count)];
    for (const [i, server] of primaries.entries()) {
      const [from, to] = [Math.floor((SLOTS * i) / count), Math.floor((SLOTS * (i + 1)) / count) - 1];
      await server.run("CLUSTER", "ADDSLOTSRANGE", from, to);
      await server.run("CLUSTER", "SET-CONFIG-EPOCH", i + 1);
    }
    // Each is told of all others, which gossip would do in seconds.
    for (const [i, server] of all.entries()) {
      const bus = await server.run("CONFIG", "GET", "cluster-port");
      for (const other of all.slice(0, i)) {
        await other.run("CLUSTER", "MEET", "127.0.0.1", server.port, (bus as string[])[1] ?? "");
      }
    }
    const cluster = new Cluster(primaries, replicas);
    for (const [i, replica] of replicas.entries()) {
      const id = String(await primaries[i]?.run("CLUSTER", "MYID"));
      await eventually("the replica knows its primary", async () =>
        String(await replica.run("CLUSTER", "NODES")).includes(id),
      );
      await replica.run("CLUSTER", "REPLICATE", id);
    }
    for (const server of all) {
      await eventually("the cluster is complete", async () => {
        const ranges = (await server.run("CLUSTER", "SLOTS")) as unknown[][];
        const nodes = ranges.reduce((sum, range) => sum + range.length - 2, 0);
        return nodes === all.length && String(await server.run("CLUSTER", "INFO")).includes("cluster_state:ok");
      });
    }
    return cluster;
  }

  get ports(): number[] {
    return this.primaries.map((server) => server.port);
  }

  /** The sum of a statistic of INFO over servers: `errorstat_MOVED` or `cmdstat_rl.peek`. */
  static async sum(servers: readonly Server[], section: string, field: string): Promise<number> {
    const counts = await Promise.all(
      servers.map(async (server) => Number(/(?:count|calls)=(\d+)/.exec(await server.info(section, field))?.[1] ?? 0)),
    );
    return counts.reduce((sum, count) => sum + count, 0);
  }

  async stop(): Promise<void> {
    await Promise.all([...this.primaries, ...this.replicas].map((server) => server.stop()));
  }
}
