/** Keys and other words of commands: text or bytes. */

import { createHash } from "node:crypto";

/** A word of a command: keys are text or bytes, everything else is text. */
export type Word = string | Uint8Array;

/** A word as the client libraries take it. */
export function bytes(word: Word): string | Buffer {
  if (typeof word === "string" || Buffer.isBuffer(word)) return word;
  return Buffer.from(word.buffer, word.byteOffset, word.byteLength);
}

const LONGEST = 128;

/** A key in the maps of this process: bytes are not confused with text, and a long key takes no more room than others. */
export function memoryKey(key: Word): string {
  const text = typeof key === "string" ? key : `\0${Buffer.from(key).toString("latin1")}`;
  return text.length <= LONGEST ? text : `\0\0${createHash("sha256").update(text).digest("base64")}`;
}
