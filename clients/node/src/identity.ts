/** What a request is counted by: the address of its client, and the key that an adapter makes of it. */

import { createHash } from "node:crypto";
import { BlockList, isIPv4, isIPv6 } from "node:net";
import { integer } from "./checks.js";
import { ADAPTER, IDENTITY } from "./defaults.js";

export interface IdentityOptions {
  /**
   * The proxies in front of this process: addresses and networks, such as `["10.0.0.0/8", "fd00::/8"]`. `X-Forwarded-For`
   * is read only if the request comes from one of them; none unless given.
   */
  readonly trustedProxies?: readonly string[];
  /** Bits of an IPv6 address that belong to one client, 1 to 128. By default 64: a home or a server has at least a /64. */
  readonly ipv6Prefix?: number;
}

/** What is read of a request: those of node:http, Express and Fastify (`request.raw`) have it. */
export interface RequestLike {
  readonly socket?: { readonly remoteAddress?: string | undefined } | null;
  readonly headers: Readonly<Record<string, string | readonly string[] | undefined>>;
}

/**
 * Makes a function that says by which address a request is counted: `undefined` if it has none, as behind a Unix socket
 * or when the connection is closed already.
 *
 * ```ts
 * const identify = clientAddress({ trustedProxies: ["10.0.0.0/8"] });
 * app.use(rateLimit({ keyGenerator: (request) => identify(request) ?? "", store, ... }));
 * ```
 *
 * @throws RangeError if a proxy is not an address or a network, or the prefix is out of range.
 */
export function clientAddress(options: IdentityOptions = {}): (request: RequestLike) => string | undefined {
  const { trustedProxies = [], ipv6Prefix = ADAPTER.ipv6Prefix } = options;
  integer("ipv6Prefix", ipv6Prefix, 1, 128);
  const trusted = networks(trustedProxies);
  const isProxy = (address: string) => trusted.check(address, isIPv4(address) ? "ipv4" : "ipv6");
  return ({ socket, headers }) => {
    let address = readAddress(socket?.remoteAddress ?? "");
    const forwarded = headers["x-forwarded-for"];
    const list = (typeof forwarded === "string" ? forwarded : (forwarded ?? []).join(",")).trim();
    const hops = list === "" ? [] : list.split(",");
    // From the nearest proxy outwards, as far as proxies that are trusted say who asked them.
    while (address !== undefined && hops.length > 0 && isProxy(address)) {
      address = readAddress((hops.pop() as string).trim());
    }
    return address === undefined || isIPv4(address) ? address : network(address, ipv6Prefix);
  };
}

function networks(list: readonly string[]): BlockList {
  const result = new BlockList();
  for (const text of list) {
    const [address = "", bits, ...more] = text.split("/");
    const family = isIPv4(address) ? "ipv4" : isIPv6(address) ? "ipv6" : undefined;
    const most = family === "ipv4" ? 32 : 128;
    const prefix = bits === undefined ? most : /^[0-9]{1,3}$/.test(bits) ? Number(bits) : -1;
    if (!family || prefix < 0 || prefix > most || more.length > 0) {
      throw new RangeError(`${JSON.stringify(text)} is not an address or a network such as "10.0.0.0/8"`);
    }
    result.addSubnet(address, prefix, family);
  }
  return result;
}

/** An address as proxies write it, perhaps with a port; an IPv4 address in IPv6 form as IPv4. */
function readAddress(text: string): string | undefined {
  const bare = /^\[([^\]]*)\](?::[0-9]+)?$/.exec(text)?.[1] ?? /^([0-9.]+):[0-9]+$/.exec(text)?.[1] ?? text;
  // The zone of a link-local address has a meaning on this machine only.
  const address = bare.split("%", 1)[0] as string;
  if (isIPv4(address)) return address;
  if (!isIPv6(address)) return undefined;
  const [, high, low] = /^::ffff:([^:]+):([^:]+)$/.exec(compress(address)) ?? [];
  if (high === undefined || low === undefined) return address;
  return [high, low].flatMap((group) => [...Buffer.from(group.padStart(4, "0"), "hex")]).join(".");
}

/** The network of an IPv6 address, as text in its shortest form. */
function network(address: string, prefix: number): string {
  const [head = [], tail = []] = compress(address)
    .split("::")
    .map((part) => part.split(":").filter(Boolean));
  const zeros = Array.from({ length: 8 - head.length - tail.length }, () => "0");
  const groups = [...head, ...zeros, ...tail].map((group, i) => {
    const others = 16 - Math.max(0, Math.min(16, prefix - 16 * i));
    return ((Number.parseInt(group, 16) >> others) << others).toString(16);
  });
  const text = compress(groups.join(":"));
  return prefix === 128 ? text : `${text}/${prefix}`;
}

function compress(address: string): string {
  return new URL(`http://[${address}]/`).hostname.slice(1, -1);
}

/**
 * The path at which the application is mounted that sees a request at `path`: as many parts of the whole URL's as that lacks.
 * They are compared by number, since parts may have been decoded on the way.
 */
export function mountedAt(url: string, path: string): string {
  // The host and the port of a whole URL may be what no URL has.
  const { pathname } = new URL(url.replace(/^(?:https?:\/\/[^/?#]*)?/i, "http://host"));
  const parts = pathname.split("/");
  const base =
    path === "/" && !pathname.endsWith("/") ? parts : parts.slice(0, 1 + parts.length - path.split("/").length);
  return decoded(base.join("/"), decodeURI);
}

/** A part of a URL in plain text; as it is if it cannot be decoded. */
export function decoded(text: string, decode: (text: string) => string): string {
  try {
    return decode(text);
  } catch {
    return text;
  }
}

/**
 * What a route is called in keys: by the methods that it is declared for, and its template. A HEAD is a GET, by which it is
 * answered: else it would have a quota of its own.
 */
export function routeName(methods: readonly string[], template: string): string {
  const declared = new Set(methods.map((method) => method.toUpperCase().replace(/^HEAD$/, "GET")));
  // A route of all methods names dozens of them.
  return `${declared.size > 8 ? "ALL" : [...declared].sort().join(",")} ${template}`;
}

/** The key of an adapter: prefix, policy, and the identity in a hash tag. No two of them make the same key. */
export function adapterKey(prefix: string = ADAPTER.prefix, policy: string, identity: string): string {
  // Half of a surrogate pair, which JSON may have, is no text that could be sent.
  const escaped = identity.replace(
    /[%{}]|\p{Surrogate}/gu,
    (char) => `%${char.charCodeAt(0).toString(16).toUpperCase()}`,
  );
  return `${prefix}${policy.replace(/[%:{}]/g, encodeURIComponent)}:{${shortened(escaped)}}`;
}

/** Whatever a client sends, a key is no longer than a few hundred bytes. */
export function shortened(text: string): string {
  if (Buffer.byteLength(text) <= IDENTITY.longest) return text;
  const bytes = Buffer.from(text);
  let kept: number = IDENTITY.kept;
  // To the end of a character.
  while (((bytes[kept] as number) & 0xc0) === 0x80) kept++;
  return `${bytes.subarray(0, kept)}${IDENTITY.mark}${createHash("sha256").update(bytes).digest("hex")}`;
}
