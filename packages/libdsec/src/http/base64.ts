/** Bytes put through `btoa` at once: arguments of one call are limited. */
const PIECE_BYTES = 24_576;

/** Base64, where only what browsers have can be used. */
export function base64Of(data: string | Uint8Array): string {
  const bytes = typeof data === 'string' ? new TextEncoder().encode(data) : data;
  let text = '';
  // A multiple of three bytes, so that the pieces join without padding between them.
  for (let at = 0; at < bytes.length; at += PIECE_BYTES) {
    text += btoa(String.fromCharCode(...bytes.subarray(at, at + PIECE_BYTES)));
  }
  return text;
}
