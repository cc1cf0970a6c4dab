/** Where an image, or its data, is written: a fresh, empty file. */
export interface ImageOutput {
  write(bytes: Uint8Array, position: number): Promise<void>;
  /** Sets the length; what was never written, or was cut off, reads as zeros. */
  truncate(sizeBytes: number): Promise<void>;
}

/** Zeros are left as holes in units of this size, counted from the start of the output, so that chunking of the input changes nothing. */
const HOLE_BYTES = 64 * 1024;
const zeros = Buffer.alloc(HOLE_BYTES);

/** Writes what is not zeros of bytes that nothing was written to before. */
export const writeWithHoles = async (output: ImageOutput, bytes: Buffer, position: number): Promise<void> => {
  let runStart = 0;
  for (let at = 0; at < bytes.length; ) {
    const end = Math.min(bytes.length, at + HOLE_BYTES - ((position + at) % HOLE_BYTES));
    if (bytes.subarray(at, end).equals(zeros.subarray(0, end - at))) {
      if (runStart < at) await output.write(bytes.subarray(runStart, at), position + runStart);
      runStart = end;
    }
    at = end;
  }
  if (runStart < bytes.length) await output.write(bytes.subarray(runStart), position + runStart);
};
