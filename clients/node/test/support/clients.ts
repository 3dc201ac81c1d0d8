/** The clients that are supported, each in the versions that are. */

import { Redis as Ioredis6, Cluster as Ioredis6Cluster } from "ioredis";
import { Redis as Ioredis5, Cluster as Ioredis5Cluster } from "ioredis5";
import { createClient as createClient6, createCluster as createCluster6 } from "redis";
import type { RedisClient } from "redis-rl";
import { createClient as createClient5, createCluster as createCluster5 } from "redis5";

export interface OpenClient {
  readonly client: RedisClient;
  close(): void;
}

export interface ClientKind {
  readonly name: string;
  open(port: number, options?: { keyPrefix?: string }): Promise<OpenClient>;
  /** A cluster client; with `replicas` it sends what only reads to them. */
  openCluster(ports: readonly number[], options?: { replicas?: boolean; keyPrefix?: string }): Promise<OpenClient>;
}

const nodeRedis = (
  name: string,
  createClient: typeof createClient6,
  createCluster: typeof createCluster6,
  more: { RESP?: 2 | 3 } = {},
): ClientKind => ({
  name,
  async open(port, options) {
    const client = createClient({ ...more, ...options, socket: { port, host: "127.0.0.1", reconnectStrategy: 10 } });
    client.on("error", () => {});
    await client.connect();
    return { client, close: () => client.destroy() };
  },
  async openCluster(ports, { replicas = false, ...options } = {}) {
    const cluster = createCluster({
      ...more,
      ...options,
      rootNodes: ports.map((port) => ({ socket: { port, host: "127.0.0.1" } })),
      useReplicas: replicas,
    });
    cluster.on("error", () => {});
    await cluster.connect();
    return { client: cluster, close: () => cluster.destroy() };
  },
});

const ioredis = (
  name: string,
  Redis: typeof Ioredis6,
  Cluster: typeof Ioredis6Cluster,
  more: object = {},
): ClientKind => ({
  name,
  async open(port, options = {}) {
    const client = new Redis(port, "127.0.0.1", { ...more, ...options, retryStrategy: () => 10 });
    client.on("error", () => {});
    return { client, close: () => client.disconnect() };
  },
  async openCluster(ports, { replicas = false, ...options } = {}) {
    const cluster = new Cluster(
      ports.map((port) => ({ port, host: "127.0.0.1" })),
      { scaleReads: replicas ? "slave" : "master", redisOptions: { ...more, ...options } },
    );
    cluster.on("error", () => {});
    // Until then its connections are those of the startup nodes, and it routes nothing.
    await new Promise((resolve) => cluster.once("ready", resolve));
    return { client: cluster, close: () => cluster.disconnect() };
  },
});

export const clients: readonly ClientKind[] = [
  nodeRedis("node-redis 6", createClient6, createCluster6),
  nodeRedis("node-redis 6, RESP2", createClient6, createCluster6, { RESP: 2 }),
  nodeRedis(
    "node-redis 5",
    createClient5 as unknown as typeof createClient6,
    createCluster5 as unknown as typeof createCluster6,
  ),
  ioredis("ioredis 6", Ioredis6, Ioredis6Cluster),
  ioredis("ioredis 6, RESP3 mapping", Ioredis6, Ioredis6Cluster, { protocol: 3, replyMapping: "resp3" }),
  ioredis("ioredis 5", Ioredis5 as unknown as typeof Ioredis6, Ioredis5Cluster as unknown as typeof Ioredis6Cluster),
];
