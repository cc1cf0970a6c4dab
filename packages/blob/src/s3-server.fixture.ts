/**
 * The used part of S3 over HTTP, with signatures checked, objects in memory, and faults on demand. It stands in for a server because none
 * that checks Signature Version 4 can be installed without a build of its own.
 */
import { hash, randomUUID } from 'node:crypto';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Clock } from '@dsec/kit';
import { type Account, signatureFault } from './s3-signature.fixture.ts';

interface Stored {
  readonly bytes: Buffer;
  readonly modifiedMs: number;
}

/** What the next request that matches comes to. */
export interface Fault {
  readonly status: number;
  readonly code?: string;
  readonly headers?: Readonly<Record<string, string>>;
  /** Instead of an error: the right answer, cut off after so many bytes of its body. */
  readonly cutAtBytes?: number;
  /** Instead of an error: nothing, ever. */
  readonly isSilent?: boolean;
}

export const BUCKET = 'layers';
const MIN_PART_BYTES = 5 * 1024 * 1024;

export class S3Server implements AsyncDisposable {
  readonly account: Account = { accessKeyId: 'AKIATEST', secretAccessKey: 'secret/of+the test' };
  readonly objects = new Map<string, Stored>();
  readonly uploads = new Map<
    string,
    { readonly key: string; readonly startedMs: number; readonly parts: Map<number, Buffer> }
  >();
  /** `METHOD /path?query` of every request, in order. */
  readonly requests: string[] = [];
  readonly faults: Fault[] = [];
  /** Bytes of objects and parts that were sent here. */
  receivedBytes = 0;
  /** Puts beyond this sum are refused. */
  capacityBytes = Number.POSITIVE_INFINITY;
  readonly #clock: Clock;
  readonly #server: Server;

  private constructor(clock: Clock) {
    this.#clock = clock;
    this.#server = createServer((request, response) => void this.#serve(request, response));
  }

  static async start(clock: Clock): Promise<S3Server> {
    const server = new S3Server(clock);
    await new Promise<void>((resolve) => server.#server.listen(0, '127.0.0.1', resolve));
    return server;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async #serve(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const parts: Buffer[] = [];
    for await (const part of request) parts.push(part as Buffer);
    const body = Buffer.concat(parts);
    this.requests.push(`${request.method} ${request.url}`);
    const fault = this.faults.shift();
    if (fault?.isSilent === true) return;
    if (fault !== undefined && fault.cutAtBytes === undefined) {
      refuse(response, fault.status, fault.code ?? 'InternalError', fault.headers);
      return;
    }
    const invalid = signatureFault(request, body, this.account, this.#clock.now());
    if (invalid !== undefined) {
      refuse(response, 403, invalid);
      return;
    }
    const url = new URL(request.url ?? '/', 'http://any');
    const [, bucket = '', ...rest] = url.pathname.split('/').map(decodeURIComponent);
    const key = rest.join('/');
    if (bucket !== BUCKET) refuse(response, 404, 'NoSuchBucket');
    else if (key === '') this.#bucket(url.searchParams, response);
    else if (request.method === 'PUT') this.#put(key, url.searchParams, body, response);
    else if (request.method === 'POST') this.#post(key, url.searchParams, body, response);
    else if (request.method === 'DELETE') this.#delete(key, url.searchParams, response);
    else this.#get(key, request, response, fault);
  }

  #bucket(query: URLSearchParams, response: ServerResponse): void {
    if (query.has('uploads')) {
      const uploads = [...this.uploads].map(
        ([id, { key, startedMs }]) =>
          `<Upload><Key>${key}</Key><UploadId>${id}</UploadId><Initiated>${new Date(startedMs).toISOString()}</Initiated></Upload>`,
      );
      answer(
        response,
        `<ListMultipartUploadsResult>${uploads.join('')}<IsTruncated>false</IsTruncated></ListMultipartUploadsResult>`,
      );
      return;
    }
    const keys = [...this.objects.keys()]
      .filter((key) => key.startsWith(query.get('prefix') ?? '') && key > (query.get('start-after') ?? ''))
      .sort((a, b) => (a < b ? -1 : 1));
    const page = keys.slice(0, Number(query.get('max-keys') ?? 1000));
    const contents = page.map((key) => {
      const { bytes, modifiedMs } = this.objects.get(key) as Stored;
      const modified = new Date(modifiedMs).toISOString();
      return `<Contents><Key>${key.replaceAll('&', '&amp;')}</Key><LastModified>${modified}</LastModified><Size>${bytes.length}</Size></Contents>`;
    });
    const isTruncated = page.length < keys.length;
    answer(
      response,
      `<ListBucketResult><IsTruncated>${isTruncated}</IsTruncated>${contents.join('')}</ListBucketResult>`,
    );
  }

  #put(key: string, query: URLSearchParams, body: Buffer, response: ServerResponse): void {
    const stored = [...this.objects.values()].reduce((sum, { bytes }) => sum + bytes.length, 0);
    if (stored + body.length > this.capacityBytes) {
      refuse(response, 507, 'XMinioStorageFull');
      return;
    }
    this.receivedBytes += body.length;
    const uploadId = query.get('uploadId');
    if (uploadId === null) this.objects.set(key, { bytes: body, modifiedMs: this.#clock.now() });
    else {
      const upload = this.uploads.get(uploadId);
      if (upload === undefined) {
        refuse(response, 404, 'NoSuchUpload');
        return;
      }
      upload.parts.set(Number(query.get('partNumber')), body);
    }
    response.setHeader('etag', tagOf(body)).end();
  }

  #post(key: string, query: URLSearchParams, body: Buffer, response: ServerResponse): void {
    if (query.has('uploads')) {
      const id = `${randomUUID()}+/=`;
      this.uploads.set(id, { key, startedMs: this.#clock.now(), parts: new Map() });
      answer(response, `<InitiateMultipartUploadResult><UploadId>${id}</UploadId></InitiateMultipartUploadResult>`);
      return;
    }
    const id = query.get('uploadId') ?? '';
    const upload = this.uploads.get(id);
    const named = [...body.toString().matchAll(/<PartNumber>(\d+)<\/PartNumber><ETag>(.*?)<\/ETag>/g)];
    const parts = named.map(([, number]) => upload?.parts.get(Number(number)) ?? Buffer.alloc(0));
    const isRight = named.every(([, number, tag], index) => {
      const part = parts[index] ?? Buffer.alloc(0);
      const isLong = part.length >= MIN_PART_BYTES || index === parts.length - 1;
      return isLong && Number(number) === index + 1 && tag?.replaceAll('&#34;', '"') === tagOf(part);
    });
    if (upload === undefined || !isRight) {
      // As the real one may: the status is out before the parts are looked at.
      answer(response, `<Error><Code>${upload === undefined ? 'NoSuchUpload' : 'InvalidPart'}</Code></Error>`);
      return;
    }
    const bytes = Buffer.concat(parts);
    this.objects.set(key, { bytes, modifiedMs: this.#clock.now() });
    this.uploads.delete(id);
    answer(response, `<CompleteMultipartUploadResult><ETag>${tagOf(bytes)}</ETag></CompleteMultipartUploadResult>`);
  }

  #delete(key: string, query: URLSearchParams, response: ServerResponse): void {
    const uploadId = query.get('uploadId');
    if (uploadId === null) this.objects.delete(key);
    else this.uploads.delete(uploadId);
    response.writeHead(204).end();
  }

  #get(key: string, request: IncomingMessage, response: ServerResponse, fault: Fault | undefined): void {
    const found = this.objects.get(key);
    if (found === undefined) {
      refuse(response, 404, 'NoSuchKey');
      return;
    }
    const [, from, to] = /^bytes=(\d+)-(\d*)$/.exec(request.headers.range ?? '') ?? [];
    if (Number(from) >= found.bytes.length) {
      refuse(response, 416, 'InvalidRange');
      return;
    }
    const bytes = found.bytes.subarray(Number(from ?? 0), to === undefined || to === '' ? undefined : Number(to) + 1);
    response.writeHead(from === undefined ? 200 : 206, {
      'content-length': bytes.length,
      'last-modified': new Date(found.modifiedMs).toUTCString(),
      etag: tagOf(found.bytes),
    });
    if (request.method === 'HEAD') response.end();
    else if (fault?.cutAtBytes === undefined) response.end(bytes);
    else response.write(bytes.subarray(0, fault.cutAtBytes), () => response.destroy());
  }
}

const tagOf = (bytes: Buffer): string => `"${hash('md5', bytes)}"`;

function answer(response: ServerResponse, xml: string): void {
  response.setHeader('content-type', 'application/xml').end(`<?xml version="1.0" encoding="UTF-8"?>\n${xml}`);
}

function refuse(
  response: ServerResponse,
  status: number,
  code: string,
  headers: Readonly<Record<string, string>> = {},
): void {
  response.writeHead(status, { 'content-type': 'application/xml', ...headers });
  response.end(response.req.method === 'HEAD' ? undefined : `<Error><Code>${code}</Code></Error>`);
}
