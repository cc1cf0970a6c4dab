import { limits } from '@dsec/contract';
import type { DSecClient, EnvironmentUsage } from '@dsec/libdsec';
import type { Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, printJson, type Context } from '../context.ts';
import { size, table } from '../table.ts';
import { usageIfThere } from '../usage.ts';

interface UsageOptions extends ConnectionOptions {
  readonly json?: boolean;
}

const HEX_DIGITS = 12;

/** Who uses what. */
export function usageVerb(env: Command, context: Context): void {
  withConnection(
    env
      .command('usage [name]')
      .description(
        'show who stands on one, or on each: live sandboxes, other environments, and how much of each layer is on the node and was ever read there',
      ),
  )
    .option('--json', 'print all about it')
    .action(async (name: string | undefined, options: UsageOptions) => {
      await using client = await connect(context, options);
      const signal = context.interrupted;
      if (name !== undefined) {
        const usage = await client.environments.usage(name, { signal });
        if (options.json === true) printJson(context, usage);
        else print(context, `live sandboxes that run from it: ${usage.sandboxes}\n${layerTable(usage)}`);
        return;
      }
      const usages = await usagesOf(client, signal);
      if (options.json === true) printJson(context, usages);
      else print(context, environmentTable(usages));
    });
}

async function usagesOf(client: DSecClient, signal: AbortSignal): Promise<readonly EnvironmentUsage[]> {
  const usages: EnvironmentUsage[] = [];
  for await (const { name } of client.environments.list({ pageSize: limits.pageSize.maximum, signal })) {
    const usage = await usageIfThere(client, name, signal);
    if (usage !== undefined) usages.push(usage);
  }
  return usages;
}

function layerTable({ layers }: EnvironmentUsage): string {
  return table(
    ['LAYER', 'DATA', 'HERE', 'TOUCHED', 'SHARE', 'SANDBOXES', 'OTHER ENVIRONMENTS'],
    layers.map((layer) => [
      layer.layer.replace('sha256:', '').slice(0, HEX_DIGITS),
      sizeOr(layer.dataBytes),
      size(layer.presentBytes),
      sizeOr(layer.touchedBytes),
      percent(layer.touchedShare),
      String(layer.sandboxes),
      String(layer.otherEnvironments),
    ]),
  );
}

function environmentTable(usages: readonly EnvironmentUsage[]): string {
  return table(
    ['NAME', 'SANDBOXES', 'LAYERS', 'DATA', 'HERE', 'TOUCHED'],
    usages.map(({ name, sandboxes, layers }) => [
      name,
      String(sandboxes),
      String(layers.length),
      sizeOr(sumOf(layers.map(({ dataBytes }) => dataBytes))),
      size(layers.reduce((bytes, { presentBytes }) => bytes + presentBytes, 0)),
      sizeOr(sumOf(layers.map(({ touchedBytes }) => touchedBytes))),
    ]),
  );
}

/** Null when nothing is known of any of them. */
const sumOf = (values: readonly (number | null)[]): number | null =>
  values.reduce((sum, value) => (value === null ? sum : (sum ?? 0) + value), null);

const sizeOr = (bytes: number | null): string => (bytes === null ? '-' : size(bytes));
const percent = (share: number | null): string => (share === null ? '-' : `${(share * 100).toFixed(1)} %`);
