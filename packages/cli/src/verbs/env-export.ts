import type { Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { connect, dataDirectoryOf, type ConnectionOptions } from '../connection.ts';
import { print, printJson, type Context } from '../context.ts';
import { requireRoot } from '../server/installation.ts';
import { duration, size } from '../table.ts';
import { startProgress } from '../terminal/progress.ts';

interface ExportOptions extends ConnectionOptions {
  readonly output: string;
  readonly json?: boolean;
}

/** Environments as images for other engines. */
export function exportVerb(env: Command, context: Context): void {
  withConnection(
    env
      .command('export <name>')
      .description(
        'write one as an OCI layout, for other engines or `env push`, on the machine of the server (as root)',
      ),
  )
    .requiredOption('-o, --output <path>', 'a new directory, or a new file whose name ends with .tar')
    .option('--json', 'print all about it')
    .action(async (name: string, options: ExportOptions) => {
      requireRoot('env export');
      const { exportImage } = await import('@dsec/environment');
      const { openHolds } = await import('../prune-layers.ts');
      const progress = startProgress(context);
      const { clock, random, interrupted: signal } = context;
      const startedMs = clock.monotonicMs();
      progress.step(`exporting ${name}`);
      try {
        await using client = await connect(context, options);
        const { image } = await client.environments.get(name);
        const data = dataDirectoryOf(context, options);
        const layersDirectory = data.layers;
        await using holds = await openHolds(context, data);
        for (const layer of image.layers) await holds.hold(layer);
        const onProgress = ({ step }: { readonly step: string }): void => progress.detail(step);
        const exported = await exportImage(
          { layersDirectory, clock, random, signal, onProgress },
          { image, name, output: options.output },
        );
        progress.done(
          `${name} is in ${options.output}: ${exported.layers} layers, ${size(exported.sizeBytes)} in ${duration(clock.monotonicMs() - startedMs)}`,
        );
        if (options.json === true) printJson(context, exported);
        else print(context, exported.digest);
      } catch (error) {
        progress.failed('the export failed');
        throw error;
      }
    });
}
