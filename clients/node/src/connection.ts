/**
 * The clients that are spoken to, each behind one small interface. None of them is imported: what is needed of them is
 * found on the object that the user passes.
 */

import { LostReplyError } from "./errors.js";

/** A word of a command: keys are bytes, everything else is text. */
export type Word = string | Uint8Array;

/** Where a command goes. */
export interface Route {
  /** The key by which a cluster client finds the node. */
  readonly key: Word;
  /** Whether the command only reads, so that a replica may answer where the client reads from replicas. */
  readonly readOnly: boolean;
}

/**
 * What the limiter needs of a client. Write one to use another client than node-redis and ioredis.
 *
 * `send` sends the command once and resolves with its reply. If the reply is lost after the command was written, it
 * rejects with a {@link LostReplyError}. Error replies reject with an `Error` whose message is the reply's line.
 */
export interface Connection {
  /** Put in front of every key. */
  readonly keyPrefix: string;
  send(command: readonly Word[], route: Route): Promise<unknown>;
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
  if ("send" in client) return client;
  let connection = connections.get(client);
  if (!connection) {
    if (typeof client?.sendCommand !== "function") {
      throw new TypeError("not a client of node-redis or ioredis, and not a Connection");
    }
    connection = "call" in client && "defineCommand" in client ? new Ioredis(client) : new NodeRedis(client);
    connections.set(client, connection);
  }
  return connection;
}

/** node-redis sends a command once. A cluster and a sentinel need to be told how to route it. */
class NodeRedis implements Connection {
  readonly #client: NodeRedisLike;
  readonly #kind: "cluster" | "sentinel" | "client";

  constructor(client: NodeRedisLike) {
    this.#client = client;
    this.#kind = "nodeByAddress" in client ? "cluster" : "getSentinelNode" in client ? "sentinel" : "client";
  }

  get keyPrefix(): string {
    // Version 6 has the option, does not apply it to raw commands, and shows it by this name on all four kinds.
    const { _keyPrefix } = this.#client as { _keyPrefix?: string };
    return _keyPrefix ?? "";
  }

  async send(command: readonly Word[], { key, readOnly }: Route): Promise<unknown> {
    const args = command.map(bytes);
    // The reply is read as the server sends it, whatever types the client maps it to otherwise.
    const options = { typeMapping: {} };
    try {
      switch (this.#kind) {
        case "cluster":
          return await this.#client.sendCommand(bytes(key), readOnly, args, options);
        case "sentinel":
          return await this.#client.sendCommand(readOnly, args, options);
        case "client":
          return await this.#client.sendCommand(args, options);
      }
    } catch (error) {
      // Only commands that have been written are rejected with this one; the others wait for the next connection.
      if (error instanceof Error && error.constructor.name === "SocketClosedUnexpectedlyError") {
        throw new LostReplyError(error);
      }
      throw error;
    }
  }
}

/** The parts of ioredis' Command that are used here. */
interface IoredisCommand {
  keys: Word[];
  isReadOnly: boolean;
  promise: Promise<unknown>;
  toWritable(socket: unknown): string | Buffer;
}
type IoredisCommandClass = new (name: string, args: Word[], options: { replyEncoding: string }) => IoredisCommand;
type Reject = (error: Error) => void;

/** ioredis routes by the keys that a Command names; `call` names none for a command that ioredis does not know. */
class Ioredis implements Connection {
  readonly #client: IoredisLike;
  readonly #Command: ReturnType<typeof sentOnce>;
  /** Commands that may have been written and not been answered. The nodes of a cluster reject theirs by themselves. */
  readonly #pending: Set<{ lose(error: Error): void }> | undefined;

  constructor(client: IoredisLike) {
    this.#client = client;
    this.#Command = sentOnce(commandClass(client));
    if ("isCluster" in client && client.isCluster) return;
    const pending = new Set<{ lose(error: Error): void }>();
    this.#pending = pending;
    (client as unknown as NodeJS.EventEmitter).on("close", () => {
      for (const command of [...pending]) command.lose(new Error("Connection is closed."));
    });
  }

  get keyPrefix(): string {
    const { options } = this.#client as { options?: { keyPrefix?: string } };
    return options?.keyPrefix ?? "";
  }

  async send([name, ...args]: readonly Word[], { key, readOnly }: Route): Promise<unknown> {
    const command = new this.#Command(String(name), args.map(bytes), { replyEncoding: "utf8" });
    command.keys = [bytes(key)];
    command.isReadOnly = readOnly;
    this.#pending?.add(command);
    try {
      const traced = this.#client.sendCommand(command);
      // In version 6 this is the promise of a trace around the command, which rejects as the command does.
      if (traced !== command.promise) Promise.resolve(traced).catch(() => {});
      return await command.promise;
    } finally {
      this.#pending?.delete(command);
    }
  }
}

/**
 * A Command that is not sent again after its reply was lost. The single client would, when it has reconnected, and the
 * cluster, through another connection. Both go through `toWritable` and `reject`, and that is where they are stopped.
 */
function sentOnce(Base: IoredisCommandClass) {
  return class extends Base {
    // Without initial values, which would be set after the constructor of the base class has assigned `reject`.
    declare written: boolean | undefined;
    declare settle: Reject | undefined;
    declare current: Reject;

    /** Rejects if the command has been written and not been answered. */
    lose(error: Error): void {
      if (this.written) this.settle?.(new LostReplyError(error));
    }

    override toWritable(socket: unknown): string | Buffer {
      if (this.written) {
        // The second time without a reply in between. The queue waits for a reply to what is written: a PING.
        this.lose(new Error("Connection is closed."));
        return "*1\r\n$4\r\nPING\r\n";
      }
      this.written = true;
      return super.toWritable(socket);
    }

    /**
     * The cluster assigns a function of its own, which sends the command again after a redirection or a failure, and
     * calls the one that it found here when it gives up.
     */
    get reject(): Reject {
      const next = this.current;
      return (error) => {
        if (error.name !== "ReplyError") {
          if (this.written) this.lose(error);
          else next.call(this, error);
          return;
        }
        this.written = false;
        // The cluster would ask a random node again; the limiter asks the right one.
        if (error.message.startsWith("TRYAGAIN")) this.settle?.(error);
        else next.call(this, error);
      };
    }

    set reject(next: Reject) {
      this.settle ??= next;
      this.current = next;
    }
  };
}

/** ioredis' own Command class, of the very version that the client is of: what its `call` makes is looked at. */
function commandClass(client: IoredisLike): IoredisCommandClass {
  let found: unknown;
  const standIn = {
    options: {},
    sendCommand(command: object) {
      found = command.constructor;
    },
  };
  client.call.call(standIn, "PING");
  if (typeof found !== "function") throw new TypeError("not a client of ioredis 5 or 6");
  return found as IoredisCommandClass;
}

function bytes(word: Word): string | Buffer {
  if (typeof word === "string" || Buffer.isBuffer(word)) return word;
  return Buffer.from(word.buffer, word.byteOffset, word.byteLength);
}
