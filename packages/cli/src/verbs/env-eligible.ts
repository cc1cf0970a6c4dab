import { PlatformError } from '@dsec/contract';
import { InvalidArgumentError, Option, type Command } from 'commander';
import { decimal, seconds, withConnection } from '../arguments.ts';
import { noted } from '../audit-note.ts';
import { connect, dataDirectoryOf, type ConnectionOptions } from '../connection.ts';
import { print, printJson, say, type Context } from '../context.ts';
import { weights, type Eligibility, type Weight } from '../eligibility.ts';
import { duration, size, table } from '../table.ts';
import { startProgress } from '../terminal/progress.ts';

interface EligibleOptions extends ConnectionOptions {
  readonly share: number;
  readonly weigh: Weight;
  readonly blob?: string;
  readonly json?: boolean;
}

interface SyncOptions extends EligibleOptions {
  readonly to: string;
  readonly prune?: boolean;
  readonly grace?: number;
}

/** Of the paper. */
const DEFAULT_SHARE = 0.7;
/** Longer than an upload of a layer takes, and than clocks differ. */
const DEFAULT_GRACE_S = 3600;

/** Which environments a second store needs for a share of all tasks, and how they come there. */
export function eligibleVerbs(env: Command, context: Context): void {
  withQuery(
    env
      .command('eligible [name]')
      .description(
        'list the environments whose layers cover a share of the sandboxes that ran here lately in the fewest bytes, or say whether one is among them',
      ),
  ).action(async (name: string | undefined, options: EligibleOptions) => {
    const { eligibility } = await import('../eligibility.ts');
    await using client = await connect(context, options);
    const environment = name === undefined ? undefined : await client.environments.get(name);
    const store = options.blob === undefined ? undefined : await storeOf(context, options, options.blob);
    const found = await eligibility(context, client, { share: options.share, weight: options.weigh, store });
    if (environment === undefined) {
      if (options.json === true) printJson(context, shown(found));
      else print(context, listing(found));
      return;
    }
    const inside = new Set(found.layers.map(({ layer }) => layer));
    const missingLayers = environment.image.layers.filter((layer) => !inside.has(layer));
    const isEligible = missingLayers.length === 0;
    if (options.json === true) printJson(context, { name: environment.name, isEligible, missingLayers });
    else print(context, isEligible ? 'yes' : `no: ${missingLayers.length} of its layers are not in the set`);
  });
  withQuery(
    env
      .command('sync')
      .description(
        'copy those environments from the blob store into another one: what is there is not sent again, and nothing is removed there',
      ),
  )
    .requiredOption('--to <url>', 'the other blob store, as `up --blob` takes it')
    .option('--prune', 'remove from the other store all that is not among them')
    .option('--grace <time>', 'with --prune: leave what is younger (default: 1h)', seconds)
    .action(async (options: SyncOptions) => {
      const [{ eligibility }, { syncEnvironments }] = await Promise.all([
        import('../eligibility.ts'),
        import('../sync-environments.ts'),
      ]);
      const progress = startProgress(context);
      const startedMs = context.clock.monotonicMs();
      try {
        await using client = await connect(context, options);
        const from = await storeOf(context, options, options.blob);
        const to = await storeOf(context, options, options.to);
        const { share, weigh: weight } = options;
        const found = await eligibility(context, client, { share, weight, store: from });
        if (options.prune === true && !found.isReached) {
          throw new PlatformError('invalid_argument', `nothing is pruned: ${unreached(found)}`, {
            details: { field: '--prune', reason: 'the share is not reached' },
          });
        }
        const synced = await noted(context, client, 'env.sync', {
          run: () =>
            syncEnvironments(
              context,
              {
                from,
                to,
                environments: found.environments.map(({ environment }) => environment),
                layers: found.layers.map(({ layer }) => layer),
                prune: options.prune === true ? { graceMs: (options.grace ?? DEFAULT_GRACE_S) * 1000 } : undefined,
              },
              progress,
            ),
          factsOf: ({ environments, newLayers }) => ({ detail: { environments, newLayers } }),
        });
        const tookMs = context.clock.monotonicMs() - startedMs;
        progress.done(
          `${synced.environments} environments: ${synced.newLayers} of ${synced.layers} layers were new, ${size(synced.sentBytes)} sent in ${duration(tookMs)}`,
        );
        if (!found.isReached) say(context, unreached(found));
        const { newLayers, sentBytes, pruned } = synced;
        if (options.json === true) printJson(context, { ...shown(found), newLayers, sentBytes, pruned });
      } catch (error) {
        progress.failed('the sync failed');
        throw error;
      }
    });
}

function withQuery(command: Command): Command {
  return withConnection(command)
    .option(
      '--share <share>',
      'of the sandboxes that ran here, each weighed by its age: 0 to 1',
      shareOf,
      DEFAULT_SHARE,
    )
    .addOption(
      new Option('--weigh <what>', 'what the size of a layer is: its data, or what was ever read of them here')
        .choices(weights)
        .default('data'),
    )
    .option('--blob <url>', 'the blob store, as `up` takes it (default: that of the server)')
    .option('--json', 'print all about it');
}

function shareOf(text: string): number {
  const share = decimal(text);
  if (share >= 0 && share <= 1) return share;
  throw new InvalidArgumentError('It must be a number from 0 to 1.');
}

async function storeOf(context: Context, options: ConnectionOptions, url: string | undefined) {
  const { blobStoreOf } = await import('../stored-environments.ts');
  return await blobStoreOf(context, dataDirectoryOf(context, options), url);
}

/** Without what `env show` says of each. */
const shown = ({ environments, ...found }: Eligibility) => ({
  ...found,
  environments: environments.map(({ environment: { name, kind, image }, tasks }) => ({
    name,
    kind,
    tasks,
    layers: image.layers,
  })),
});

function listing(found: Eligibility): string {
  const sizes = new Map(found.layers.map(({ layer, dataBytes }) => [layer, dataBytes]));
  const rows = found.environments.map(({ environment: { name, kind, image }, tasks }) => [
    name,
    kind,
    shownTasks(tasks),
    String(image.layers.length),
    size([...new Set(image.layers)].reduce((sum, layer) => sum + (sizes.get(layer) ?? 0), 0)),
  ]);
  const share = found.totalTasks === 0 ? 0 : (found.coveredTasks / found.totalTasks) * 100;
  const summary = `${found.layers.length} layers of ${size(found.bytes)} cover ${shownTasks(found.coveredTasks)} of ${shownTasks(found.totalTasks)} sandboxes (${share.toFixed(1)} %)`;
  const parts = [table(['NAME', 'KIND', 'SANDBOXES', 'LAYERS', 'DATA'], rows), summary];
  if (!found.isReached) parts.push(unreached(found));
  return parts.join('\n');
}

/** A sandbox that is not new is no whole one. */
const shownTasks = (tasks: number): string => String(Math.round(tasks * 10) / 10);

const unreached = ({ share }: Eligibility): string =>
  `a share of ${share} cannot be reached: the size of some layers is unknown here (say --blob, or run them once)`;
