import type { Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { noted } from '../audit-note.ts';
import { connect, connectLocal, dataDirectoryOf, type ConnectionOptions } from '../connection.ts';
import { print, printJson, say, type Context } from '../context.ts';
import type { Pruned } from '../prune-layers.ts';
import { requireRoot } from '../server/installation.ts';
import { size, table } from '../table.ts';
import { startProgress } from '../terminal/progress.ts';

interface PruneOptions {
  readonly data?: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface RemoveOptions extends ConnectionOptions {
  readonly keepLayers?: boolean;
}

/** What takes environments from a server, and from the disk what only they needed. */
export function pruneVerbs(env: Command, context: Context): void {
  withConnection(
    env
      .command('rm <name...>')
      .description(
        'take names away, and (as root, on the machine of the server) layers that only they needed; sandboxes that run from them go on',
      ),
  )
    .option('--keep-layers', 'take only the names away: `env prune` removes the layers')
    .action(async (names: readonly string[], options: RemoveOptions) => {
      const layers = new Set<string>();
      {
        await using client = await connect(context, options);
        for (const name of names) {
          const { image } = await client.environments.get(name);
          await client.environments.remove(name);
          for (const layer of image.layers) layers.add(layer);
          say(context, `environment ${name} is removed`);
        }
      }
      if (options.keepLayers === true) return;
      if (!isHere(context, options)) {
        say(context, 'its layers stay until somebody runs `dsec env prune` on the machine of the server, as root');
        return;
      }
      const { pruneLayers } = await import('../prune-layers.ts');
      const data = dataDirectoryOf(context, options);
      await using client = await connectLocal(data);
      const pruned = await noted(context, client, 'env.rm', {
        run: () => pruneLayers(context, client, { data, layers: [...layers] }),
        factsOf,
      });
      if (pruned.layers.length > 0) say(context, summary(pruned));
    });
  env
    .command('prune')
    .description(
      'remove layers from the machine of the server that no environment names and no sandbox, build or pack needs, their sets, and notes of builds (as root)',
    )
    .option('--data <dir>', 'data directory of a server on this machine (default: DSEC_DATA, else /var/lib/dsec)')
    .option('--dry-run', 'only say what would go')
    .option('--json', 'print all about it')
    .action(async (options: PruneOptions) => {
      requireRoot('env prune');
      const { pruneLayers } = await import('../prune-layers.ts');
      const { dryRun = false } = options;
      const data = dataDirectoryOf(context, options);
      const progress = startProgress(context);
      progress.step('looking for layers that nobody needs');
      try {
        // Of no other server: what it does not need may be what this one stands on.
        await using client = await connectLocal(data);
        const pruned = await noted(context, client, 'env.prune', {
          run: () => pruneLayers(context, client, { data, dryRun }),
          factsOf,
        });
        progress.done(summary(pruned));
        if (options.json === true) printJson(context, pruned);
        else if (pruned.layers.length > 0) print(context, listing(pruned));
      } catch (error) {
        progress.failed('not all could be removed');
        throw error;
      }
    });
}

/** For the audit log. */
const factsOf = ({ dryRun, layers, bytes }: Pruned): { readonly detail: Record<string, number | boolean> } => ({
  detail: { dryRun, layers: layers.length, bytes },
});

/** Whether the files of the server that is meant are this user's to remove. */
const isHere = (context: Context, { endpoint }: ConnectionOptions): boolean =>
  process.getuid?.() === 0 && endpoint === undefined && context.variables.DSEC_ENDPOINT === undefined;

const counted = (count: number, what: string): string => `${count} ${what}${count === 1 ? '' : 's'}`;

const summary = ({ dryRun, layers, sets, notes, bytes }: Pruned): string => {
  const what = `${counted(layers.length, 'layer')}, ${counted(sets.length, 'set')} and ${counted(notes, 'note')}`;
  return `${what} ${dryRun ? 'would go' : 'are gone'}: ${size(bytes)}`;
};

const listing = ({ layers }: Pruned): string =>
  table(
    ['LAYER', 'SIZE'],
    layers.map(({ layer, bytes }) => [layer.replace('sha256:', ''), size(bytes)]),
  );
