/** Nodes that share a blob store, and workspaces that come to them through it. */
import type { EnvironmentImage } from '@dsec/libdsec';
import type { TestServer } from '@dsec/testkit';
import { hash } from 'node:crypto';
import { chmod, mkdtemp } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { layerOfFiles } from './layer-of-files.ts';

const ROOT = join(import.meta.dirname, '../..');
const BUILD_MS = 300_000;
/** More than one chunk, not a whole number of them. */
export const FILE_BYTES = 600_000;
/** A node of which two or three are up at once. */
export const SMALL_NODE = { environments: [], volumeSize: '4G', poolBlanks: 4, maxSandboxes: 128 } as const;

/** A fresh directory for a blob store, which the edge, who is not root, may read. */
export async function storeDirectory(): Promise<string> {
  const store = await mkdtemp(join(tmpdir(), 'dsec-t-blob-'));
  await chmod(store, 0o755);
  return store;
}

/** Builds the environment of the suites on a node and puts it into its store. */
export async function storeEnvironment(builder: TestServer): Promise<void> {
  const recipe = join(import.meta.dirname, 'environment.yaml');
  await builder.cli(['env', 'build', recipe, '--reuse', join(ROOT, '.cache/environments')], { timeoutMs: BUILD_MS });
  await builder.cli(['env', 'upload', 'e2e'], { timeoutMs: BUILD_MS });
}

/** What a file of a workspace holds: bytes that do not compress and differ from file to file. */
export function contentOf(workspace: string, file: string): Buffer {
  const parts: Buffer[] = [];
  for (let at = 0; at < FILE_BYTES; at += 64) parts.push(hash('sha512', `${workspace}/${file} ${at}`, 'buffer'));
  return Buffer.concat(parts).subarray(0, FILE_BYTES);
}

export const sumOf = (workspace: string, file: string): string => hash('sha256', contentOf(workspace, file));

/** A workspace of files `/w/NAME`, built and named on a node. */
export async function putWorkspace(
  server: TestServer,
  name: string,
  files: readonly string[],
): Promise<EnvironmentImage> {
  const contents = Object.fromEntries(files.map((file) => [`w/${file}`, contentOf(name, file)]));
  const image = await layerOfFiles(server.data, { files: contents, workdir: '/w' });
  await server.client.environments.put(name, image, { kind: 'workspace' });
  return image;
}

/** The exit codes of a verb that fails. */
const FAILED = Array.from({ length: 255 }, (_, code) => code + 1);

/** What a verb that is to fail ends with: the code of its error, or all it said. */
export async function codeOf(server: TestServer, args: readonly string[]): Promise<string> {
  const { stderrTail } = await server.cli(args, { okExitCodes: FAILED });
  return /\[([a-z_]+)\]/.exec(stderrTail)?.[1] ?? stderrTail;
}
