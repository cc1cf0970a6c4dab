/**
 * A program that serves the files below a directory as a bucket, for tests in other languages. It prints one line, `{endpoint, bucket, account}`;
 * then each line on standard input is a fault that the next request meets, or `requests`, which is answered with those that came.
 */
import { readdir, readFile } from 'node:fs/promises';
import { join, relative } from 'node:path';
import { createInterface } from 'node:readline';
import { SystemClock } from '@dsec/kit';
import { BUCKET, type Fault, S3Server } from './s3-server.fixture.ts';

const [, , root = '', prefix = ''] = process.argv;
const clock = new SystemClock();
await using server = await S3Server.start(clock);
for (const entry of await readdir(root, { recursive: true, withFileTypes: true })) {
  if (!entry.isFile()) continue;
  const path = join(entry.parentPath, entry.name);
  const key = `${prefix}${relative(root, path)}`;
  server.objects.set(key, { bytes: await readFile(path), modifiedMs: clock.now() });
}
const say = (value: unknown): void => void process.stdout.write(`${JSON.stringify(value)}\n`);
say({ endpoint: server.endpoint, bucket: BUCKET, account: server.account });
for await (const line of createInterface({ input: process.stdin })) {
  if (line !== 'requests') server.faults.push(JSON.parse(line) as Fault);
  say(line === 'requests' ? server.requests : {});
}
