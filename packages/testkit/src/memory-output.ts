/** Where a writer of images writes, in memory. */
export class MemoryOutput {
  bytes: Buffer = Buffer.alloc(0);

  write(bytes: Uint8Array, position: number): Promise<void> {
    this.#resize(Math.max(this.bytes.length, position + bytes.length));
    this.bytes.set(bytes, position);
    return Promise.resolve();
  }

  truncate(sizeBytes: number): Promise<void> {
    this.#resize(sizeBytes);
    return Promise.resolve();
  }

  #resize(sizeBytes: number): void {
    if (sizeBytes === this.bytes.length) return;
    const grown = Buffer.alloc(sizeBytes);
    grown.set(this.bytes.subarray(0, sizeBytes));
    this.bytes = grown;
  }
}
