/** Randomness, injected everywhere, so that a run can be repeated from its seed. */
import { randomBytes } from 'node:crypto';

/** The only source of randomness. */
export interface Random {
  /** `count` random bytes. */
  bytes(count: number): Buffer;
  /** A number in [0, 1). */
  float(): number;
  /** An integer in [0, bound). */
  integer(bound: number): number;
  /** `length` characters of `[a-z0-9]`, each equally likely. */
  base36(length: number): string;
}

const BASE36 = '0123456789abcdefghijklmnopqrstuvwxyz';
/** The greatest multiple of 36 in a byte: bytes from here on would favour the first characters. */
const BASE36_FAIR = 252;

abstract class BaseRandom implements Random {
  abstract bytes(count: number): Buffer;

  float(): number {
    return Number(this.bytes(8).readBigUInt64BE() >> 11n) / 2 ** 53;
  }

  integer(bound: number): number {
    return Math.floor(this.float() * bound);
  }

  base36(length: number): string {
    let text = '';
    while (text.length < length) {
      for (const byte of this.bytes(length + 8)) {
        if (byte < BASE36_FAIR && text.length < length) text += BASE36.charAt(byte % 36);
      }
    }
    return text;
  }
}

/** How much is drawn from the kernel at once; ids need a few bytes each. */
const POOL_BYTES = 4096;

/** Randomness of the kernel, fit for keys. */
export class SystemRandom extends BaseRandom {
  #pool: Buffer = Buffer.alloc(0);
  #used = 0;

  bytes(count: number): Buffer {
    if (count > POOL_BYTES / 4) return randomBytes(count);
    if (this.#used + count > this.#pool.length) {
      this.#pool = randomBytes(POOL_BYTES);
      this.#used = 0;
    }
    const bytes = Buffer.from(this.#pool.subarray(this.#used, this.#used + count));
    this.#pool.fill(0, this.#used, this.#used + count);
    this.#used += count;
    return bytes;
  }
}

/** The same sequence for the same seed (splitmix64). Never for keys. */
export class SeededRandom extends BaseRandom {
  #state: bigint;

  constructor(seed: number | bigint) {
    super();
    this.#state = BigInt.asUintN(64, BigInt(seed));
  }

  bytes(count: number): Buffer {
    const words = Math.ceil(count / 8);
    const buffer = Buffer.alloc(words * 8);
    for (let word = 0; word < words; word++) buffer.writeBigUInt64BE(this.#next(), word * 8);
    return buffer.subarray(0, count);
  }

  #next(): bigint {
    this.#state = BigInt.asUintN(64, this.#state + 0x9e3779b97f4a7c15n);
    let mixed = this.#state;
    mixed = BigInt.asUintN(64, (mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n);
    mixed = BigInt.asUintN(64, (mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn);
    return mixed ^ (mixed >> 31n);
  }
}
