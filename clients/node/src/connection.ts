/**
 * The clients that are spoken to, each behind one small interface. None of them is imported: what is needed of them is
 * found on the object that the user passes.
 *
 * node-redis sends a call once, so the user's own client is used. ioredis sends a call again after its reply was lost, and
 * keeps it until the server is back; no call can be told otherwise. So the calls of a limiter go through a duplicate of the
 * user's client that does neither. It is opened by the first call and closed when the user's client ends.
 */

import type { Writable } from "node:stream";
import keySlot from "cluster-key-slot";
import { isReply, LostReplyError, UnavailableError } from "./errors.js";

/** A word of a command: keys are bytes, everything else is text. */
export type Word = string | Uint8Array;

/** Where a command goes. */
export interface Route {
  /** The key by which a cluster client finds the node. */
  readonly key: Word;
  /** Whether the command only reads, so that a replica may answer where the client reads from replicas. */
  readonly readOnly: boolean;
  /** Milliseconds for which the caller waits for the reply. */
  readonly timeout: number;
}

/**
 * What the limiter needs of a client. Write one to use another client than node-redis and ioredis.
 *
 * `send` sends the command once and resolves with its reply. Error replies reject with an `Error` whose message is the
 * reply's line. If nothing was sent, it rejects with an {@link UnavailableError}; every other rejection means that the
 * reply was lost.
 */
export interface Connection {
  /** Put in front of every key. */
  readonly keyPrefix: string;
  /** Whether `MOVED` and `ASK` are followed. */
  readonly cluster?: boolean;
  send(command: readonly Word[], route: Route): Promise<unknown>;
  /** The name of the node that has a key, in a cluster: where one node is unavailable, the others go on. */
  nodeOf?(key: Word): string | undefined;
  /** Called with a function to call after each reconnection: the server may be another one. */
  onReconnect?(listener: () => void): void;
}

/** A client, pool, cluster or sentinel of node-redis (`redis`, `@redis/client`), version 5 or 6. */
export interface NodeRedisLike {
  // biome-ignore lint/suspicious/noExplicitAny: the four kinds take different arguments.
  sendCommand(...args: any[]): Promise<any>;
}

/** A `Redis` or `Cluster` of ioredis, version 5 or 6. */
export interface IoredisLike {
  // biome-ignore lint/suspicious/noExplicitAny: the type of ioredis' own Command differs between its versions.
  sendCommand(command: any): any;
  // biome-ignore lint/suspicious/noExplicitAny: as above.
  call(...args: any[]): any;
}

export type RedisClient = NodeRedisLike | IoredisLike | Connection;

const connections = new WeakMap<object, Connection>();

/** The connection of a client; the same one for the same client. */
export function connect(client: RedisClient): Connection {
  if (typeof client !== "object" || client === null) throw notAClient(client);
  const known = connections.get(client);
  if (known) return known;
  const connection = wrap(client as unknown as Record<string, unknown>);
  connections.set(client, connection);
  return connection;
}

function wrap(client: Record<string, unknown>): Connection {
  const has = (...names: string[]) => names.every((name) => typeof client[name] === "function");
  if (has("send") && typeof client.keyPrefix === "string") return client as unknown as Connection;
  if (has("call", "defineCommand")) return new Ioredis(client as unknown as IoredisClient);
  if (has("sendCommand")) return new NodeRedis(client as unknown as NodeRedisClient);
  throw notAClient(client);
}

function notAClient(given: unknown): TypeError {
  const what =
    typeof given === "object" && given !== null ? `a ${given.constructor?.name ?? "plain"} object` : String(given);
  return new TypeError(`The client must be one of node-redis or ioredis, or a Connection, not ${what}`);
}

/** What is used of the clients of node-redis; a part of it is on each of the four kinds. */
interface NodeRedisClient extends NodeRedisLike {
  readonly isReady?: boolean;
  readonly options?: { readonly keyPrefix?: string };
  readonly slots?: readonly { readonly master?: { readonly address?: string } }[];
  on?(event: string, listener: () => void): void;
}

/** node-redis sends a command once. A cluster and a sentinel need to be told how to route it. */
class NodeRedis implements Connection {
  readonly #client: NodeRedisClient;
  readonly #kind: "cluster" | "sentinel" | "client";

  constructor(client: NodeRedisClient) {
    this.#client = client;
    this.#kind = "nodeByAddress" in client ? "cluster" : "getSentinelNode" in client ? "sentinel" : "client";
  }

  get keyPrefix(): string {
    // Version 6 has the option and does not apply it to raw commands. Its cluster, sentinel and pool do not show it.
    return this.#client.options?.keyPrefix ?? "";
  }

  get cluster(): boolean {
    return this.#kind === "cluster";
  }

  nodeOf(key: Word): string | undefined {
    return this.#client.slots?.[keySlot(bytes(key))]?.master?.address;
  }

  onReconnect(listener: () => void): void {
    this.#client.on?.("ready", listener);
  }

  send(command: readonly Word[], { key, readOnly, timeout }: Route): Promise<unknown> {
    const args = command.map(bytes);
    // The reply is read as the server sends it, whatever types the client maps it to otherwise. Its own time-out is not
    // needed beside the limiter's, and costs more than all the rest here.
    const options: { typeMapping: object; timeout: undefined; abortSignal?: AbortSignal } = {
      typeMapping: NO_MAPPING,
      timeout: undefined,
    };
    // A command that waits for a connection is taken out of the queue at its deadline.
    if (this.#kind !== "client" || this.#client.isReady !== true)
      options.abortSignal = AbortSignal.timeout(Math.ceil(timeout));
    return this.#sent(key, readOnly, args, options).then(undefined, refused);
  }

  #sent(key: Word, readOnly: boolean, args: readonly (string | Buffer)[], options: object): Promise<unknown> {
    switch (this.#kind) {
      case "cluster":
        return this.#client.sendCommand(bytes(key), readOnly, args, options);
      case "sentinel":
        return this.#client.sendCommand(readOnly, args, options);
      case "client":
        return this.#client.sendCommand(args, options);
    }
  }
}

function refused(error: unknown): never {
  if (error instanceof Error && NOT_SENT.has(error.constructor.name)) {
    throw new UnavailableError(`The call was not sent: ${error.message}`, { cause: error });
  }
  throw error;
}

const NO_MAPPING = {};

/** The errors of node-redis for a command that was never written. */
const NOT_SENT = new Set(["ClientClosedError", "ClientOfflineError", "AbortError"]);

/** What is used of ioredis, all of it in its documentation or its types. */
interface IoredisClient extends IoredisLike {
  readonly status?: string;
  readonly isCluster?: boolean;
  readonly options?: { readonly keyPrefix?: string; readonly redisOptions?: { readonly keyPrefix?: string } };
  // biome-ignore lint/suspicious/noExplicitAny: a single client takes options, a cluster nodes and options.
  duplicate?(...args: any[]): IoredisDuplicate;
  on(event: string, listener: (error: Error) => void): unknown;
}

interface IoredisDuplicate extends IoredisClient {
  readonly stream?: Writable;
  readonly slots: readonly (readonly string[])[];
  readonly options: NonNullable<IoredisClient["options"]> & {
    readonly host?: string;
    readonly port?: number;
    readonly scaleReads?: unknown;
  };
  nodes(role: "all"): IoredisDuplicate[];
  asking(): Promise<unknown>;
  connect(): Promise<void>;
  disconnect(): void;
}

class Ioredis implements Connection {
  readonly cluster: boolean;
  readonly #client: IoredisClient;
  readonly #listeners: (() => void)[] = [];
  #own: IoredisDuplicate | undefined;
  #opening: Promise<void> | undefined;
  #failure: Error | undefined;

  constructor(client: IoredisClient) {
    this.#client = client;
    this.cluster = client.isCluster === true;
  }

  get keyPrefix(): string {
    const { options } = this.#client;
    return options?.keyPrefix ?? options?.redisOptions?.keyPrefix ?? "";
  }

  nodeOf(key: Word): string | undefined {
    return this.cluster ? this.#own?.slots[keySlot(bytes(key))]?.[0] : undefined;
  }

  onReconnect(listener: () => void): void {
    this.#listeners.push(listener);
  }

  send(command: readonly Word[], { key, readOnly }: Route): Promise<unknown> {
    const args = command.map(bytes) as [string, ...(string | Buffer)[]];
    const own = this.#duplicate();
    // A mock of ioredis that cannot be duplicated.
    if (!own) return this.#client.call(...args);
    if (own.status === "ready" && !this.cluster) return this.#sent(own, own, args);
    return this.#routed(own, args, key, readOnly);
  }

  async #routed(
    own: IoredisDuplicate,
    args: readonly (string | Buffer)[],
    key: Word,
    readOnly: boolean,
  ): Promise<unknown> {
    if (own.status !== "ready") await this.#open(own);
    // The cluster's own `call` knows no keys of our commands: it asks any node, and follows its redirection.
    const node = this.cluster ? this.#node(own, key, readOnly) : own;
    return this.#sent(own, node ?? own, args);
  }

  #sent(own: IoredisDuplicate, node: IoredisDuplicate, args: readonly (string | Buffer)[]): Promise<unknown> {
    gather(node.stream);
    return (node.call(...args) as Promise<unknown>).then(undefined, (error) => {
      if (!isReply(error)) throw error;
      if (this.cluster && /^(?:MOVED|ASK) /.test(error.message)) return this.#redirected(own, error.message, args);
      // After a failover the address may have another server behind it.
      if (!this.cluster && error.message.startsWith("READONLY")) own.disconnect();
      throw error;
    });
  }

  /** Follows a redirection. The cluster's own `call` follows any, and learns the new owner of a slot. */
  #redirected(own: IoredisDuplicate, line: string, args: readonly (string | Buffer)[]): Promise<unknown> {
    const [kind, , name = ""] = line.split(" ");
    const target = kind === "ASK" ? nodeOf(own, name) : undefined;
    if (!target) return own.call(...args);
    // Of a slot on the move: it would hide a TRYAGAIN behind redirections of its own.
    target.asking().catch(() => {});
    return target.call(...args);
  }

  #duplicate(): IoredisDuplicate | undefined {
    if (this.#own || typeof this.#client.duplicate !== "function") return this.#own;
    const once = {
      lazyConnect: true,
      enableOfflineQueue: false,
      autoResendUnfulfilledCommands: false,
      maxRetriesPerRequest: null,
      retryStrategy: null,
      reconnectOnError: null,
      commandTimeout: undefined,
      // A connection that was cut without a word is given up, so that a later call opens another.
      socketTimeout: 5000,
    };
    const plain = { keyPrefix: "", enableAutoPipelining: false, stringNumbers: false };
    const own = this.cluster
      ? this.#client.duplicate([], {
          ...plain,
          lazyConnect: true,
          // The nodes connect when they are needed, and keep a command meanwhile.
          enableOfflineQueue: true,
          clusterRetryStrategy: null,
          retryDelayOnFailover: 0,
          retryDelayOnClusterDown: 0,
          redisOptions: {
            ...this.#client.options?.redisOptions,
            ...plain,
            commandTimeout: undefined,
            socketTimeout: 5000,
          },
        })
      : this.#client.duplicate({ ...plain, ...once });
    own.on("error", (error) => {
      this.#failure = error;
    });
    this.#client.on("end", () => own.disconnect());
    this.#own = own;
    return own;
  }

  /** Opens the duplicate. All callers wait for the same attempt, each until its own deadline. */
  async #open(own: IoredisDuplicate): Promise<void> {
    if (this.#client.status === "end") throw new UnavailableError("The client is closed");
    if (!this.#opening) {
      this.#failure = undefined;
      this.#opening = own.connect().finally(() => {
        this.#opening = undefined;
      });
      this.#opening.then(
        () => {
          for (const listener of this.#listeners) listener();
        },
        () => {},
      );
    }
    try {
      await this.#opening;
    } catch (error) {
      const cause = this.#failure ?? error;
      // A wrong password is no failure of the connection.
      if (isReply(cause)) throw cause;
      throw new UnavailableError(`The call was not sent: ${(cause as Error).message}`, { cause });
    }
  }

  /** The node that has a key, or one of its replicas for what only reads, where the client reads from them. */
  #node(own: IoredisDuplicate, key: Word, readOnly: boolean): IoredisDuplicate | undefined {
    const names = own.slots[keySlot(bytes(key))] ?? [];
    const { scaleReads } = own.options;
    let from = names.slice(0, 1);
    if (readOnly && scaleReads === "all") from = [...names];
    if (readOnly && scaleReads === "slave" && names.length > 1) from = names.slice(1);
    const name = from[Math.floor(Math.random() * from.length)];
    return nodeOf(own, name);
  }
}

/**
 * What is written in one turn of the event loop leaves in one write, as node-redis does it: ioredis makes a system call of
 * each command, which costs both processes more than the command itself.
 */
function gather(stream: Writable | undefined): void {
  if (stream?.writableCorked !== 0) return;
  stream.cork();
  soon(() => stream.uncork());
}

/** The real one, also where an app's tests put a stopped clock in its place later: their calls would never leave. */
const soon = setImmediate;

function nodeOf(cluster: IoredisDuplicate, name: string | undefined): IoredisDuplicate | undefined {
  return cluster.nodes("all").find(({ options }) => `${options.host}:${options.port}` === name);
}

function bytes(word: Word): string | Buffer {
  if (typeof word === "string" || Buffer.isBuffer(word)) return word;
  return Buffer.from(word.buffer, word.byteOffset, word.byteLength);
}

/** An error of a connection for the caller: one that was not sent, or one whose reply was lost. */
export function failure(error: unknown): UnavailableError {
  if (error instanceof UnavailableError) return error;
  const message = error instanceof Error ? error.message : String(error);
  return new LostReplyError(`The reply was lost, and the call may have been counted, or not: ${message}`, {
    cause: error,
  });
}
