/**
 * The clients that are spoken to, each behind one small interface. None of them is imported: what is needed of them is
 * found on the object that the user passes.
 *
 * The calls go through a client of our own beside the user's, a duplicate of it without retries. So a call is sent once
 * (ioredis sends again what has no reply, and keeps it until the server is back), and a connection that was cut without a
 * word, or whose server is a replica now, can be given up. It is opened when a limiter is made, if the user's client is open by
 * then, else by the first call, and ends with the user's client.
 */

import type { Writable } from "node:stream";
import keySlot from "cluster-key-slot";
import { isReply, reason, UnavailableError } from "./errors.js";
import { bytes, type Word } from "./keys.js";

export interface Route {
  /** The key by which a cluster client finds the node. */
  readonly key: Word;
  /** Whether the command only reads, so that a replica may answer where the client reads from replicas. */
  readonly readOnly: boolean;
  /** Aborts when the caller waits no longer. What was not sent by then is not to be sent. */
  readonly signal: AbortSignal;
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
  /** Called when a limiter is made, so that its first call does not have to wait for a connection. */
  open?(): void;
  /** Called with a function to call after each reconnection: the server may be another one. */
  onReconnect?(listener: () => void): void;
  /** Called when the node of a key is asked again that was silent: the connection may have been cut without a word. */
  renew?(key?: Word): void;
  /** Called when the last limiter was closed. The user's client stays open. */
  close?(): void;
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
  const connection = connections.get(client) ?? wrap(client as unknown as Record<string, unknown> | undefined);
  connections.set(client, connection);
  return connection;
}

function wrap(client: Record<string, unknown> | undefined): Connection {
  const has = (...names: string[]) => names.every((name) => typeof client?.[name] === "function");
  if (has("send") && typeof client?.keyPrefix === "string") return client as unknown as Connection;
  if (has("call", "defineCommand")) return new Ioredis(client as unknown as IoredisClient);
  if (has("sendCommand")) return new NodeRedis(client as unknown as NodeRedisClient);
  // What a text says is not told: an URL has a password.
  const kind = typeof client === "object" ? `${client?.constructor?.name ?? "plain"} object` : typeof client;
  const what = client === undefined || client === null ? String(client) : `a ${kind}`;
  throw new TypeError(`The client must be one of node-redis or ioredis, or a Connection, not ${what}`);
}

/** What the clients of both libraries have in common. All callers wait for the same attempt to connect, each until its own deadline. */
abstract class Derived<C extends object> implements Connection {
  readonly #client: C;
  #current: C | undefined;
  #next: { readonly own: C; readonly opened: Promise<C> } | undefined;
  /** The nodes of a cluster for which the next client was made, and that are asked by it. */
  readonly #silent = new Set<string | undefined>();
  readonly #listeners: (() => void)[] = [];

  constructor(client: C) {
    this.#client = client;
  }

  /** No property, which an inspected limiter would show with its password. */
  protected get client(): C {
    return this.#client;
  }

  abstract readonly keyPrefix: string;
  abstract readonly cluster: boolean;
  /** Of the user's client. `foreign`: no client of our own can be made of it, and it is used as it is. */
  protected abstract readonly state: "open" | "closed" | "later" | "foreign";
  protected abstract derive(): C;
  protected abstract connect(own: C): Promise<unknown>;
  protected abstract isReady(own: C): boolean;
  protected abstract end(own: C): void;
  protected abstract write(client: C, args: Args, route: Route): Promise<unknown>;
  protected abstract ownerOf(client: C, slot: number): string | undefined;

  get #own(): C | undefined {
    return this.#current !== undefined && this.isReady(this.#current) ? this.#current : undefined;
  }

  nodeOf(key: Word): string | undefined {
    return this.cluster ? this.ownerOf(this.#own ?? this.client, keySlot(bytes(key))) : undefined;
  }

  onReconnect(listener: () => void): void {
    this.#listeners.push(listener);
  }

  protected reconnected(): void {
    for (const listener of this.#listeners) listener();
  }

  open(): void {
    if (this.state === "open" && !this.#own) this.#opened().catch(() => {});
  }

  /** Sends a command when there is a connection, if anybody still waits for that. */
  async send(command: readonly Word[], route: Route): Promise<unknown> {
    const args = command.map(bytes);
    const { state } = this;
    const isSilent = this.#next !== undefined && this.#silent.has(this.nodeOf(route.key));
    let own = state === "foreign" ? this.client : isSilent ? undefined : this.#own;
    if (!own) {
      if (state === "closed") throw new UnavailableError("The call was not sent: the client is closed");
      own = await this.#opened().catch((error) => {
        throw notSent(error);
      });
      if (route.signal.aborted) throw new UnavailableError("The call was not sent in time");
    }
    try {
      const reply = await this.write(own, args, route);
      this.#use(own);
      return reply;
    } catch (error) {
      if (isReply(error)) this.#use(own);
      // After a failover the name may lead to another server.
      if (!this.cluster && isReply(error, /^READONLY/)) this.close();
      throw error;
    }
  }

  #opened(): Promise<C> {
    if (!this.#next) {
      const own = this.derive();
      this.#next = { own, opened: this.#attempt(own) };
    }
    return this.#next.opened;
  }

  async #attempt(own: C): Promise<C> {
    const failure = await this.connect(own).then(
      () => this.reconnected(),
      (error) => ({ error }),
    );
    if (failure) this.end(own);
    if (this.#next?.own !== own) {
      // For those that wait for an attempt that was given up: each of several nodes may have another one made.
      const instead = this.#next?.opened ?? this.#own;
      if (instead !== undefined) return instead;
      throw new UnavailableError("The call was not sent: the connection was given up");
    }
    if (failure) {
      this.#next = undefined;
      throw failure.error;
    }
    // One that other nodes answer stays until a call by this one is answered.
    if (!this.#own) this.#use(own);
    return own;
  }

  /** A client takes the place of the one before. */
  #use(own: C): void {
    if (this.#next?.own !== own) return;
    this.#next = undefined;
    this.#silent.clear();
    const old = this.#current;
    this.#current = own;
    // In a cluster it may have calls under way to other nodes.
    if (old !== undefined) setTimeout(() => this.end(old), LAST_REPLIES_MS).unref();
  }

  /** Of a cluster it opens another one for the node, and goes on with this one for the others until the node has answered. */
  renew(key?: Word): void {
    if (!this.cluster || this.state === "foreign") this.close();
    else {
      this.#abandon();
      if (key !== undefined) this.#silent.add(this.nodeOf(key));
      this.#opened().catch(() => {});
    }
  }

  close(): void {
    this.#abandon();
    if (this.#current !== undefined) this.end(this.#current);
    this.#current = undefined;
  }

  /** An attempt that has not come to an end may never do so. */
  #abandon(): void {
    if (this.#next) this.end(this.#next.own);
    this.#next = undefined;
  }
}

type Args = readonly (string | Buffer)[];

/** For how long a client that was replaced stays open. */
const LAST_REPLIES_MS = 1000;

/** The error of an attempt to connect. A wrong password is no failure of the connection. */
function notSent(error: unknown): Error {
  if (isReply(error) || error instanceof UnavailableError) return error;
  return new UnavailableError(`The call was not sent: ${reason(error)}`, { cause: error });
}

/** What is used of the clients of node-redis; a part of it is on each of the four kinds. */
interface NodeRedisClient extends NodeRedisLike {
  readonly isOpen?: boolean;
  readonly isReady?: boolean;
  readonly options?: { readonly keyPrefix?: string; readonly socket?: object };
  /** Of a cluster, in the types of all versions. */
  readonly _options?: { readonly rootNodes?: readonly { readonly socket?: object }[]; readonly defaults?: object };
  readonly slots?: readonly { readonly master?: { readonly address?: string } }[];
  on?(event: string, listener: (error: unknown) => void): void;
  duplicate?(overrides: object): NodeRedisClient;
  connect?(): Promise<unknown>;
  destroy?(): void;
}

/** A cluster and a sentinel of node-redis need to be told how to route a command. */
class NodeRedis extends Derived<NodeRedisClient> {
  readonly #kind: "cluster" | "sentinel" | "client";
  /** Clients that have, or had, a socket. */
  readonly #connected = new WeakSet<NodeRedisClient>();
  /** Why there is no connection. A call that waited for one in vain is only told that it was aborted. */
  #failure: unknown;

  constructor(client: NodeRedisClient) {
    super(client);
    this.#kind = "nodeByAddress" in client ? "cluster" : "getSentinelNode" in client ? "sentinel" : "client";
    if (this.state === "foreign") this.#watch(client);
    else client.on?.(this.cluster ? "disconnect" : "end", () => this.close());
  }

  get keyPrefix(): string {
    // Version 6 has the option and does not apply it to raw commands. Its cluster, sentinel and pool do not show it.
    return this.client.options?.keyPrefix ?? "";
  }

  get cluster(): boolean {
    return this.#kind === "cluster";
  }

  protected get state() {
    const { duplicate, isOpen } = this.client;
    if (typeof duplicate !== "function" || this.#kind === "sentinel") return "foreign";
    return isOpen ? "open" : isOpen === false ? "closed" : "later";
  }

  protected isReady(own: NodeRedisClient): boolean {
    return own.isReady ?? own.isOpen === true;
  }

  protected ownerOf({ slots }: NodeRedisClient, slot: number): string | undefined {
    return slots?.[slot]?.master?.address;
  }

  protected write(client: NodeRedisClient, args: Args, { key, readOnly, signal }: Route): Promise<unknown> {
    // The reply is read as the server sends it, whatever types the client maps it to otherwise. Its own time-out is not
    // needed beside the limiter's, and costs more than all the rest here.
    const plain = { typeMapping: {}, timeout: undefined };
    // A command that waits for a connection is taken out of the queue when it is given up.
    const waits = this.#kind !== "client" || client.isReady !== true;
    const options = waits ? { ...plain, abortSignal: signal } : plain;
    const route = { cluster: [bytes(key), readOnly], sentinel: [readOnly], client: [] }[this.#kind];
    return client.sendCommand(...route, args, options).catch((error) => {
      throw error instanceof Error && NOT_SENT.has(error.message) ? notSent(this.#failure ?? error) : error;
    });
  }

  protected derive(): NodeRedisClient {
    const { duplicate, options } = this.client as Required<NodeRedisClient>;
    // The nodes of a cluster are connected to when they are needed, so that one that hangs keeps nobody waiting. The first of
    // them is a random one that was named, for which a client of node-redis would wait as long as it hangs.
    const seeds = this.client._options?.rootNodes?.map((node) => ({
      ...node,
      socket: { ...node.socket, socketTimeout: SEED_SILENT_MS },
    }));
    // A crowd of calls, each of which has its deadline, may be longer than the queue of the user's own.
    const unbounded = { commandsQueueMaxLength: undefined };
    const defaults = { ...this.client._options?.defaults, ...unbounded };
    const overrides = this.cluster
      ? { minimizeConnections: true, defaults, ...(seeds && { rootNodes: seeds }) }
      : { ...unbounded, socket: { ...options?.socket, reconnectStrategy: false }, disableOfflineQueue: true };
    const own = duplicate.call(this.client, overrides);
    this.#watch(own);
    return own;
  }

  protected async connect(own: NodeRedisClient): Promise<void> {
    await own.connect?.();
    this.#failure = undefined;
  }

  /** A client that has no socket yet would ignore its end, connect, and stay. */
  protected end(own: NodeRedisClient): void {
    const destroy = () => {
      if (own.isOpen) own.destroy?.();
    };
    if (this.cluster || this.#connected.has(own)) destroy();
    else own.on?.("connect", destroy);
  }

  #watch(client: NodeRedisClient): void {
    client.on?.("error", (error) => {
      this.#failure = error;
    });
    client.on?.("connect", () => this.#connected.add(client));
    client.on?.("ready", () => {
      this.#failure = undefined;
      if (client === this.client) this.reconnected();
    });
  }
}

/** For how long a node that was named may be silent before another is asked for the cluster's slots. */
const SEED_SILENT_MS = 1000;

/**
 * What node-redis says of a command that was never written. The names of the errors' classes are not kept by programs that
 * make code smaller.
 */
const NOT_SENT = new Set(["The client is closed", "The client is offline", "The command was aborted"]);

/** What is used of ioredis, all of it in its documentation or its types. A mock has less. */
interface IoredisClient extends IoredisLike {
  readonly status?: string;
  readonly isCluster?: boolean;
  readonly stream?: Writable;
  readonly slots?: readonly (readonly string[])[];
  readonly options?: {
    readonly keyPrefix?: string;
    readonly redisOptions?: { readonly keyPrefix?: string };
    readonly host?: string;
    readonly port?: number;
    readonly scaleReads?: unknown;
  };
  // biome-ignore lint/suspicious/noExplicitAny: a single client takes options, a cluster nodes and options.
  duplicate?(...args: any[]): IoredisClient;
  on(event: string, listener: (error: Error) => void): unknown;
  nodes(role: "all"): IoredisClient[];
  asking(): Promise<unknown>;
  connect(): Promise<void>;
  disconnect(): void;
}

class Ioredis extends Derived<IoredisClient> {
  readonly cluster: boolean;

  constructor(client: IoredisClient) {
    super(client);
    this.cluster = client.isCluster === true;
    client.on("end", () => this.close());
  }

  get keyPrefix(): string {
    const { options } = this.client;
    return options?.keyPrefix ?? options?.redisOptions?.keyPrefix ?? "";
  }

  protected get state() {
    const { duplicate, status } = this.client;
    if (typeof duplicate !== "function") return "foreign";
    return status === "end" ? "closed" : status === "wait" ? "later" : "open";
  }

  protected isReady(own: IoredisClient): boolean {
    return own.status === "ready";
  }

  /** One that has ended would keep the process for two seconds more, in which it waits for a socket that is closed. */
  protected end(own: IoredisClient): void {
    if (own.status !== "end") own.disconnect();
  }

  protected ownerOf({ slots }: IoredisClient, slot: number): string | undefined {
    return slots?.[slot]?.[0];
  }

  protected write(own: IoredisClient, args: Args, { key, readOnly }: Route): Promise<unknown> {
    // The cluster's own `call` knows no keys of our commands: it asks any node, and follows its redirection.
    const node = (this.cluster && this.#node(own, key, readOnly)) || own;
    gather(node.stream);
    return (node.call(...args) as Promise<unknown>).catch((error) => {
      if (this.cluster && isReply(error, /^(?:MOVED|ASK) /)) return this.#redirected(own, error.message, args);
      throw error;
    });
  }

  /** Follows a redirection. The cluster's own `call` follows any, and learns the new owner of a slot. */
  #redirected(own: IoredisClient, line: string, args: Args): Promise<unknown> {
    const [kind, , name = ""] = line.split(" ");
    const target = kind === "ASK" ? nodeOf(own, name) : undefined;
    if (!target) return own.call(...args);
    // Of a slot on the move: it would hide a TRYAGAIN behind redirections of its own.
    target.asking().catch(() => {});
    return target.call(...args);
  }

  protected derive(): IoredisClient {
    const timeouts = { commandTimeout: undefined, socketTimeout: undefined };
    const plain = { keyPrefix: "", enableAutoPipelining: false, stringNumbers: false, ...timeouts };
    const duplicate = this.client.duplicate as NonNullable<IoredisClient["duplicate"]>;
    if (!this.cluster) {
      return duplicate.call(this.client, {
        ...plain,
        lazyConnect: true,
        enableOfflineQueue: false,
        autoResendUnfulfilledCommands: false,
        maxRetriesPerRequest: null,
        retryStrategy: null,
        reconnectOnError: null,
      });
    }
    return duplicate.call(this.client, [], {
      ...plain,
      lazyConnect: true,
      // The nodes connect when they are needed, and keep a command meanwhile.
      enableOfflineQueue: true,
      clusterRetryStrategy: null,
      retryDelayOnFailover: 0,
      retryDelayOnClusterDown: 0,
      redisOptions: { ...this.client.options?.redisOptions, ...plain },
    });
  }

  protected async connect(own: IoredisClient): Promise<void> {
    let failure: Error | undefined;
    own.on("error", (error) => {
      failure = error;
    });
    try {
      await own.connect();
    } catch (error) {
      throw withoutCommand(failure ?? (error as Error));
    }
  }

  /** The node that has a key, or one of its replicas for what only reads, where the client reads from them. */
  #node(own: IoredisClient, key: Word, readOnly: boolean): IoredisClient | undefined {
    const names = own.slots?.[keySlot(bytes(key))] ?? [];
    const from = readOnly ? own.options?.scaleReads : "master";
    const isReplica = from === "slave" && names.length > 1;
    const among = from === "all" ? names : isReplica ? names.slice(1) : names.slice(0, 1);
    return nodeOf(own, among[Math.floor(Math.random() * among.length)]);
  }
}

/** Why a connection could not be made. ioredis puts the command beside that, which has the password. */
function withoutCommand(error: Error & { command?: unknown; lastNodeError?: Error }): Error {
  delete error.command;
  if (error.lastNodeError) withoutCommand(error.lastNodeError);
  return error;
}

/**
 * What is written in one turn of the event loop leaves in one write, as node-redis does it: ioredis makes a system call of
 * each command, and then a server spends half as much again on each of 64 calls at once (8 µs in place of 5).
 */
function gather(stream: Writable | undefined): void {
  if (stream?.writableCorked !== 0) return;
  stream.cork();
  soon(() => stream.uncork());
}

/** The real one, also where an app's tests put a stopped clock in its place later: their calls would never leave. */
const soon = setImmediate;

function nodeOf(cluster: IoredisClient, name: string | undefined): IoredisClient | undefined {
  return cluster.nodes("all").find(({ options }) => `${options?.host}:${options?.port}` === name);
}
