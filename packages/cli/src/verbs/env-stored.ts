import type { PlatformError } from '@dsec/contract';
import type { Command } from 'commander';
import { count, seconds, withConnection } from '../arguments.ts';
import { noted } from '../audit-note.ts';
import { connect, dataDirectoryOf, type ConnectionOptions } from '../connection.ts';
import { print, printJson, type Context } from '../context.ts';
import { requireRoot } from '../server/installation.ts';
import { duration, size, table } from '../table.ts';
import { startProgress } from '../terminal/progress.ts';

/** Longer than a sandbox lives on what its name meant when it was made. */
const DEFAULT_GRACE_S = 30 * 86_400;
/** `sha256:` and enough of a digest to tell layers apart. */
const SHORT_DIGEST = 19;

interface StoreOptions extends ConnectionOptions {
  readonly blob?: string;
  readonly json?: boolean;
}

/** What goes to a blob store and comes from it. */
export function storeVerbs(env: Command, context: Context): void {
  withStore(
    env
      .command('upload <name>')
      .description('put one into the blob store, for other machines to fetch, on the machine of the server (as root)'),
  ).action(async (name: string, options: StoreOptions) => {
    requireRoot('env upload');
    const progress = startProgress(context);
    const { blobStoreOf, uploadEnvironment } = await import('../stored-environments.ts');
    const data = dataDirectoryOf(context, options);
    const startedMs = context.clock.monotonicMs();
    try {
      await using client = await connect(context, options);
      const environment = await client.environments.get(name);
      const store = await blobStoreOf(context, data, options.blob);
      const uploaded = await noted(context, client, 'env.upload', {
        facts: { environment: name },
        run: () => uploadEnvironment(context, { environment, data, store }, progress),
      });
      const { version, bytes, newBytes } = uploaded;
      progress.done(
        `environment ${name}: ${size(newBytes)} of ${size(bytes)} were new, in ${duration(context.clock.monotonicMs() - startedMs)}`,
      );
      if (options.json === true) printJson(context, uploaded);
      else print(context, version);
    } catch (error) {
      progress.failed('the upload failed');
      throw error;
    }
  });
  withStore(
    env
      .command('fetch <name>')
      .description('register one that is in the blob store; its files come when they are read')
      .option('--version <version>', 'as `env stored` shows it (default: the newest)'),
  ).action(async (name: string, options: StoreOptions & { readonly version?: string }) => {
    const { blobStoreOf, fetchEnvironment } = await import('../stored-environments.ts');
    await using client = await connect(context, options);
    const store = await blobStoreOf(context, dataDirectoryOf(context, options), options.blob);
    const environment = await fetchEnvironment(context, client, { name, version: options.version, store });
    if (options.json === true) printJson(context, environment);
    else print(context, environment.name);
  });
  withStore(
    env
      .command('relayout <name>')
      .description(
        'keep in the blob store what sandboxes here have read of one, so that machines fetch that first and in few reads (as root)',
      ),
  ).action(async (name: string, options: StoreOptions) => {
    requireRoot('env relayout');
    const progress = startProgress(context);
    const { blobStoreOf } = await import('../stored-environments.ts');
    const { relayoutEnvironment } = await import('../relayout-environment.ts');
    const data = dataDirectoryOf(context, options);
    try {
      await using client = await connect(context, options);
      const environment = await client.environments.get(name);
      const store = await blobStoreOf(context, data, options.blob);
      const relaid = await noted(context, client, 'env.relayout', {
        facts: { environment: name },
        run: () => relayoutEnvironment(context, { environment, data, store }, progress),
      });
      progress.done(`environment ${name}: ${size(relaid.bytes)} are laid out as they are read`);
      if (options.json === true) return printJson(context, relaid);
      const rows = relaid.layers.map(({ layer, tracedChunks, readsBefore, reads }) => [
        layer.slice(0, SHORT_DIGEST),
        String(tracedChunks),
        String(readsBefore),
        String(reads),
      ]);
      print(context, table(['LAYER', 'CHUNKS', 'READS BEFORE', 'READS NOW'], rows));
    } catch (error) {
      progress.failed('the layout failed');
      throw error;
    }
  });
  withStore(
    env
      .command('collect')
      .description(
        'remove from the blob store what no environment in it, and nothing on this machine, needs (as root); of its machines one at a time',
      )
      .option('--versions <n>', 'versions of each environment to keep however old they are (default: all)', count)
      .option('--grace <time>', 'leave what is younger, or was replaced later than this ago (default: 30d)', seconds),
  ).action(async (options: StoreOptions & { readonly versions?: number; readonly grace?: number }) => {
    requireRoot('env collect');
    const progress = startProgress(context);
    const { blobStoreOf } = await import('../stored-environments.ts');
    const { collectStore } = await import('../collect-store.ts');
    const data = dataDirectoryOf(context, options);
    try {
      await using client = await connect(context, options);
      const store = await blobStoreOf(context, data, options.blob);
      const { versions, grace = DEFAULT_GRACE_S } = options;
      const request = { store, data, versions, graceMs: grace * 1000 };
      const collected = await noted(context, client, 'env.collect', {
        run: () => collectStore(context, client, request, progress),
        factsOf: ({ removedVersions, removedLayers }) => ({ detail: { removedVersions, removedLayers } }),
      });
      const { removedVersions, removedLayers, removedPacks, freedBytes } = collected;
      progress.done(
        `${removedVersions} versions, ${removedLayers} layers and ${removedPacks} packs are gone: ${size(freedBytes)}`,
      );
      if (options.json === true) printJson(context, collected);
    } catch (error) {
      progress.failed('the collection failed');
      throw error;
    }
  });
  withStore(env.command('stored').description('list what the blob store has')).action(async (options: StoreOptions) => {
    const { StoredEnvironments } = await import('@dsec/blob');
    const { blobStoreOf } = await import('../stored-environments.ts');
    const store = await blobStoreOf(context, dataDirectoryOf(context, options), options.blob);
    const damaged: PlatformError[] = [];
    const stored = await new StoredEnvironments(store, context.clock).list({
      signal: context.interrupted,
      onDamaged: (error) => damaged.push(error),
    });
    if (options.json === true) printJson(context, stored);
    else {
      const rows = stored.map(({ environment: { name, kind = 'base', image }, version, uploadedAtMs }) => [
        name,
        kind,
        size(image.sizeBytes),
        String(image.layers.length),
        `${duration(context.clock.now() - uploadedAtMs)} ago`,
        version,
      ]);
      print(context, table(['NAME', 'KIND', 'SIZE', 'LAYERS', 'UPLOADED', 'VERSION'], rows));
    }
    // What is whole must not be taken for all that there is.
    const [first] = damaged;
    if (first !== undefined) throw first;
  });
}

function withStore(command: Command): Command {
  return withConnection(command)
    .option('--blob <url>', 'the blob store, as `up` takes it (default: that of the server)')
    .option('--json', 'print all about it');
}
