/** Puts of any length: what fits into one part is one request, the rest is a multipart upload; one part is in memory at a time. */
import type { ObjectBody } from './object-store.ts';
import type { S3Client } from './s3-client.ts';
import { xmlElements, xmlEscaped, xmlText } from './s3-xml.ts';
import { unavailable } from './store-error.ts';

export interface MultipartPut {
  readonly key: string;
  readonly body: ObjectBody;
  readonly partBytes: number;
  readonly signal?: AbortSignal | undefined;
}

export async function multipartPut(client: S3Client, put: MultipartPut): Promise<void> {
  const { key, signal } = put;
  await using parts = partsOf(put.body, put.partBytes);
  const first = await parts.next();
  const second = await parts.next();
  if (second.done === true) {
    const body = first.done === true ? new Uint8Array() : first.value;
    await client.text({ method: 'PUT', key, body, signal });
    return;
  }
  const uploadId = await begin(client, put);
  try {
    const tags: string[] = [];
    for (let part = first; part.done !== true; part = tags.length === 1 ? second : await parts.next()) {
      tags.push(await sendPart(client, put, { uploadId, number: tags.length + 1, body: part.value }));
    }
    await complete(client, put, { uploadId, tags });
  } catch (error) {
    // Of no use to anybody, and paid for; when the server cannot even do this, collection does it later.
    await client.text({ method: 'DELETE', key, query: { uploadId }, expected: [404] }).catch(() => undefined);
    throw error;
  }
}

/** Aborts uploads that were begun before this moment; says how many. One page at a time, since an aborted upload is no longer listed. */
export async function removeStaleUploads(client: S3Client, beforeMs: number, signal?: AbortSignal): Promise<number> {
  let removed = 0;
  let marker: Readonly<Record<string, string>> = {};
  for (;;) {
    const { text } = await client.text({ method: 'GET', key: '', query: { uploads: '', ...marker }, signal });
    for (const upload of xmlElements(text, 'Upload')) {
      const key = xmlText(upload, 'Key');
      const uploadId = xmlText(upload, 'UploadId');
      const startedMs = Date.parse(xmlText(upload, 'Initiated') ?? '');
      if (key === undefined || uploadId === undefined || !(startedMs < beforeMs)) continue;
      await client.text({ method: 'DELETE', key, query: { uploadId }, expected: [404], signal });
      removed++;
    }
    const keyMarker = xmlText(text, 'NextKeyMarker');
    const uploadIdMarker = xmlText(text, 'NextUploadIdMarker');
    if (xmlText(text, 'IsTruncated') !== 'true' || keyMarker === undefined || uploadIdMarker === undefined)
      return removed;
    marker = { 'key-marker': keyMarker, 'upload-id-marker': uploadIdMarker };
  }
}

async function begin(client: S3Client, put: MultipartPut): Promise<string> {
  const { text } = await client.text({ method: 'POST', key: put.key, query: { uploads: '' }, signal: put.signal });
  const uploadId = xmlText(text, 'UploadId');
  if (uploadId === undefined) throw unavailable(client.name, 'protocol');
  return uploadId;
}

async function sendPart(
  client: S3Client,
  put: MultipartPut,
  part: { readonly uploadId: string; readonly number: number; readonly body: Uint8Array<ArrayBuffer> },
): Promise<string> {
  const { headers } = await client.text({
    method: 'PUT',
    key: put.key,
    query: { partNumber: String(part.number), uploadId: part.uploadId },
    body: part.body,
    signal: put.signal,
  });
  const tag = headers.get('etag');
  if (tag === null) throw unavailable(client.name, 'protocol');
  return tag;
}

async function complete(
  client: S3Client,
  put: MultipartPut,
  upload: { readonly uploadId: string; readonly tags: readonly string[] },
): Promise<void> {
  const parts = upload.tags.map(
    (tag, index) => `<Part><PartNumber>${index + 1}</PartNumber><ETag>${xmlEscaped(tag)}</ETag></Part>`,
  );
  const { text } = await client.text({
    method: 'POST',
    key: put.key,
    query: { uploadId: upload.uploadId },
    body: new Uint8Array(Buffer.from(`<CompleteMultipartUpload>${parts.join('')}</CompleteMultipartUpload>`)),
    signal: put.signal,
  });
  // The server may find out that it cannot put the parts together after it has sent the status.
  if (xmlText(text, 'ETag') === undefined)
    throw unavailable(client.name, xmlText(text, 'Code')?.slice(0, 64) ?? 'protocol');
}

/** The body in pieces of this length; the last one may be shorter, and an empty body has none. */
async function* partsOf(body: ObjectBody, partBytes: number): AsyncGenerator<Uint8Array<ArrayBuffer>, undefined> {
  let pending: Uint8Array[] = [];
  let length = 0;
  for await (const piece of body instanceof Uint8Array ? [body] : body) {
    for (let at = 0; at < piece.length; ) {
      const taken = piece.subarray(at, at + partBytes - length);
      pending.push(taken);
      length += taken.length;
      at += taken.length;
      if (length < partBytes) continue;
      const part = Buffer.concat(pending, length);
      pending = [];
      length = 0;
      yield part;
    }
  }
  if (length > 0) yield Buffer.concat(pending, length);
  return undefined;
}
