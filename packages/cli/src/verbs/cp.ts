import { PlatformError } from '@dsec/contract';
import type { Sandbox } from '@dsec/libdsec';
import type { Command } from 'commander';
import { createReadStream } from 'node:fs';
import { chmod, open, rename, rm, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import { withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import type { Context } from '../context.ts';

interface Options extends ConnectionOptions {
  readonly user?: string;
}

interface Copy {
  readonly sandbox: Sandbox;
  readonly local: string;
  readonly remote: string;
  readonly how: { readonly user?: string; readonly signal: AbortSignal };
}

export function copyVerb(program: Command, context: Context): void {
  const command = program
    .command('cp <from> <to>')
    .description('copy a file or directory into a sandbox or out of it: one of the two is SANDBOX:PATH')
    .addHelpText(
      'after',
      '\nA directory that exists, or a target with a slash at its end, gets the copy inside under its own name.',
    );
  withConnection(command)
    .option('-u, --user <user>', 'whose rights apply, and who owns what is made in the sandbox')
    .action(async (from: string, to: string, options: Options) => {
      const [source, target] = [remotePath(from), remotePath(to)];
      const remote = source ?? target;
      if (remote === undefined || (source !== undefined && target !== undefined)) {
        throw new PlatformError('invalid_argument', 'one of the two must be SANDBOX:PATH, and only one', {
          details: { field: 'to' },
        });
      }
      await using client = await connect(context, options);
      const sandbox = await client.getSandbox(remote.sandboxId);
      const how = { ...(options.user === undefined ? {} : { user: options.user }), signal: context.interrupted };
      const copy = { sandbox, local: source === undefined ? from : to, remote: remote.path, how };
      await (source === undefined ? upload(copy) : download(copy));
    });
}

/** `ID:/path`. What has a slash before the colon is a local path. */
function remotePath(text: string): { readonly sandboxId: string; readonly path: string } | undefined {
  const match = /^([a-z0-9]{1,24}):(.+)$/s.exec(text);
  return match?.[1] === undefined || match[2] === undefined ? undefined : { sandboxId: match[1], path: match[2] };
}

async function upload({ sandbox, local, remote, how }: Copy): Promise<void> {
  const info = await stat(local).catch((error: unknown) => {
    throw new PlatformError('file_not_found', `there is no local file ${local}`, {
      details: { path: local },
      cause: error,
    });
  });
  const isInside = remote.endsWith('/') || (await isRemoteDirectory(sandbox, remote, how));
  const path = isInside ? `${remote.replace(/\/+$/, '')}/${basename(local)}` : remote;
  if (info.isDirectory()) {
    await sandbox.files.mkdir(path, how);
    await sandbox.files.uploadDirectory(local, path, how);
    return;
  }
  await sandbox.files.write(path, createReadStream(local) as AsyncIterable<Uint8Array>, {
    ...how,
    mode: info.mode & 0o777,
  });
}

async function download({ sandbox, local, remote, how }: Copy): Promise<void> {
  const info = await sandbox.files.stat(remote, how);
  const existing = await stat(local).catch(() => undefined);
  // The name comes from the caller, not from the sandbox.
  const path = local.endsWith('/') || existing?.isDirectory() === true ? join(local, basename(remote)) : local;
  if (info.kind === 'directory') {
    await sandbox.files.downloadDirectory(remote, path, how);
    return;
  }
  const partial = `${path}.part.${process.pid}`;
  try {
    await using file = await open(partial, 'wx', 0o600);
    const content = await sandbox.files.readStream(remote, how);
    for await (const chunk of content) await file.writeFile(chunk);
    await chmod(partial, info.mode & 0o777);
    await rename(partial, path);
  } catch (error) {
    await rm(partial, { force: true });
    throw error;
  }
}

async function isRemoteDirectory(sandbox: Sandbox, path: string, how: Copy['how']): Promise<boolean> {
  try {
    return (await sandbox.files.stat(path, how)).kind === 'directory';
  } catch (error) {
    if (PlatformError.is(error) && (error.code === 'file_not_found' || error.code === 'not_directory')) return false;
    throw error;
  }
}
