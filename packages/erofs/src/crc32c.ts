const POLYNOMIAL_REFLECTED = 0x82f63b78; // Castagnoli

const table = new Uint32Array(256).map((_, byte) => {
  let value = byte;
  for (let bit = 0; bit < 8; bit++) value = value & 1 ? (value >>> 1) ^ POLYNOMIAL_REFLECTED : value >>> 1;
  return value;
});

/** CRC-32C as the kernel's `crc32c()` computes it: seeded by the caller, not inverted at the end. */
export const crc32c = (bytes: Uint8Array, seed = 0xffffffff): number => {
  let crc = seed;
  for (const byte of bytes) crc = (crc >>> 8) ^ (table[(crc ^ byte) & 0xff] ?? 0);
  return crc >>> 0;
};
