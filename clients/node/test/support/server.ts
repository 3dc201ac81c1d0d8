/** Servers of one's own: a private folder and port each, killed when the process ends. */

import { type ChildProcess, execFileSync, spawn } from "node:child_process";
import {
  closeSync,
  existsSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readFileSync,
  renameSync,
  rmSync,
  writeSync,
} from "node:fs";
import { createServer } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";
import { Redis } from "ioredis";
import type { Mode } from "redis-rl";

/** The repository: this file runs as clients/node/build/test/support/server.js. */
export const root = join(__dirname, "../../../../../");
const program = process.env.REDIS_SERVER ?? "redis-server";

/** How the server under test takes the commands. */
export const modes: readonly Mode[] = ["module", "functions", "script"];

export interface ServerOptions {
  /** `script` is a server that knows no functions, as Redis 6.2. */
  readonly mode?: Mode;
  /** Stop the clock at this unix time in milliseconds. */
  readonly frozenAt?: number;
  readonly port?: number;
  readonly arguments?: readonly string[];
}

const running = new Set<Server>();
process.on("exit", () => {
  for (const server of running) server.kill();
});

export class Server {
  readonly port: number;
  readonly folder: string;
  readonly #child: ChildProcess;
  readonly #admin: Redis;

  private constructor(port: number, folder: string, child: ChildProcess) {
    this.port = port;
    this.folder = folder;
    this.#child = child;
    this.#admin = new Redis(port, { lazyConnect: true, retryStrategy: () => 10, maxRetriesPerRequest: null });
    this.#admin.on("error", () => {});
    running.add(this);
  }

  static async start(options: ServerOptions = {}): Promise<Server> {
    const port = options.port ?? (await freePort());
    const folder = mkdtempSync(join(tmpdir(), "redis-rl-node-"));
    const log = openSync(join(folder, "log"), "a");
    const env: NodeJS.ProcessEnv = { ...process.env };
    if (options.frozenAt !== undefined) {
      env.LD_PRELOAD = shim();
      env.RL_CLOCK = join(folder, "clock");
      writeClock(folder, options.frozenAt);
    }
    const child = spawn(program, [...serverArguments(port, options)], {
      cwd: folder,
      env,
      stdio: ["ignore", log, log],
    });
    closeSync(log);
    const server = new Server(port, folder, child);
    await server.#ready();
    return server;
  }

  /** Sends a command to this server, past the client under test. */
  async run(...command: (string | number | Buffer)[]): Promise<unknown> {
    const [name, ...args] = command;
    return this.#admin.call(String(name), ...args);
  }

  /** One field of INFO, or "". */
  async info(section: string, field: string): Promise<string> {
    const text = String(await this.run("INFO", section));
    return new RegExp(`^${field}:(.*)$`, "m").exec(text)?.[1]?.trim() ?? "";
  }

  /** Moves a stopped clock. */
  setTime(millis: number): void {
    writeClock(this.folder, millis);
  }

  /** Stops the process, which keeps its connections and takes new ones: a server that hangs. */
  pause(): void {
    this.#child.kill("SIGSTOP");
  }

  resume(): void {
    this.#child.kill("SIGCONT");
  }

  kill(): void {
    this.#admin.disconnect();
    this.#child.kill("SIGKILL");
    running.delete(this);
    rmSync(this.folder, { recursive: true, force: true });
  }

  /** Ends the server and waits until its port is free again. */
  async stop(): Promise<void> {
    const over = this.#child.exitCode !== null || this.#child.signalCode !== null;
    const ended = over || new Promise((resolve) => this.#child.once("exit", resolve));
    this.kill();
    await ended;
  }

  async #ready(): Promise<void> {
    await eventually("the server answers", async () => {
      if (this.#child.exitCode !== null) {
        throw new Error(`the server has ended:\n${readFileSync(join(this.folder, "log"), "utf8")}`);
      }
      if (this.#admin.status === "wait") await this.#admin.connect().catch(() => {});
      return this.#admin.status === "ready" && (await this.run("PING")) === "PONG";
    });
  }
}

function serverArguments(port: number, { mode, frozenAt, arguments: more = [] }: ServerOptions): string[] {
  const list = ["--port", String(port), "--bind", "127.0.0.1", "--save", "", "--enable-debug-command", "yes"];
  list.push("--enable-module-command", "yes");
  if (frozenAt !== undefined) list.push("--jemalloc-bg-thread", "no"); // See clock.c.
  if (mode === "module") list.push("--loadmodule", modulePath());
  if (mode === "script") {
    for (const name of ["FUNCTION", "FCALL", "FCALL_RO"]) list.push("--rename-command", name, "");
  }
  return [...list, ...more];
}

export function modulePath(): string {
  const path = process.env.MODULE ?? join(root, "target/release/libredis_rl.so");
  if (!existsSync(path)) throw new Error(`${path} is not there: build the module first, or set MODULE`);
  return path;
}

/** The library that stops the clock of the process it is preloaded into. */
function shim(): string {
  const folder = join(tmpdir(), `redis-rl-clock-${process.getuid?.() ?? 0}`);
  const library = join(folder, "clock.so");
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  // Built beside its place and moved there: another run may be using the old one.
  const fresh = join(folder, `clock.${process.pid}.so`);
  execFileSync("cc", ["-shared", "-fPIC", "-O2", "-o", fresh, join(root, "tests/support/clock.c")]);
  renameSync(fresh, library);
  return library;
}

function writeClock(folder: string, millis: number): void {
  const time = new BigInt64Array([BigInt(millis) * 1000n]);
  const file = openSync(join(folder, "clock"), existsSync(join(folder, "clock")) ? "r+" : "w");
  writeSync(file, new Uint8Array(time.buffer), 0, 8, 0);
  closeSync(file);
}

export async function freePort(): Promise<number> {
  const probe = createServer();
  await new Promise<void>((resolve) => probe.listen(0, "127.0.0.1", resolve));
  const address = probe.address();
  await new Promise((resolve) => probe.close(resolve));
  if (typeof address !== "object" || address === null) throw new Error("no port");
  return address.port;
}

/** Waits until something is so, and says what it waited for if it never is. */
export async function eventually(what: string, isSo: () => Promise<boolean> | boolean): Promise<void> {
  const deadline = Date.now() + 20_000;
  while (!(await isSo())) {
    if (Date.now() > deadline) throw new Error(`it did not come about that ${what}`);
    await sleep(5);
  }
}
