/** Keys and other words of commands: text or bytes. */

import { createHash } from "node:crypto";

/** A word of a command: keys are text or bytes, everything else is text. */
export type Word = string | Uint8Array;

export function bytes(word: Word): string | Buffer {
  if (typeof word === "string" || Buffer.isBuffer(word)) return word;
  return Buffer.from(word.buffer, word.byteOffset, word.byteLength);
}

export function checkedWord(what: string, word: Word): Word {
  // Halves of surrogate pairs would all be sent as one and the same character.
  if (typeof word === "string" && HALF.test(word)) throw new TypeError(`${what} has half of a surrogate pair`);
  if (typeof word === "string" || word instanceof Uint8Array) return word;
  throw new TypeError(`${what} is a string or bytes, and is not ${String(word)}`);
}

const HALF = /\p{Surrogate}/u;
const LONGEST = 128;

/** A key in the maps of this process: bytes are not confused with text, and a long key takes no more room than others. */
export function memoryKey(key: Word): string {
  const word = checkedWord("a key", key);
  const text = typeof word === "string" ? word : `\0${Buffer.from(word).toString("latin1")}`;
  return text.length <= LONGEST ? text : `\0\0${createHash("sha256").update(text).digest("base64")}`;
}
