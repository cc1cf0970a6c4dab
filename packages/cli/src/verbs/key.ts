import type { Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, printJson, say, type Context } from '../context.ts';
import { duration, table } from '../table.ts';

interface Options extends ConnectionOptions {
  readonly json?: boolean;
  readonly readOnly?: boolean;
  readonly builder?: boolean;
}

export function keyVerb(program: Command, context: Context): void {
  const key = program.command('key').description('API keys: create, ls, revoke');
  withConnection(key.command('create <name>').description('make a key and print its secret, which is shown this once'))
    .option('--read-only', 'it may look, not change or run anything')
    .option('--builder', 'it may also make layers and environments out of sandboxes')
    .option('--json', 'print all about it')
    .action(async (name: string, options: Options) => {
      await using client = await connect(context, options);
      const created = await client.keys.create(name, {
        readOnly: options.readOnly === true,
        builder: options.builder === true,
      });
      if (options.json === true) printJson(context, created);
      else {
        say(context, `key ${created.info.keyId}; its secret is shown this once:`);
        print(context, created.key);
      }
    });
  withConnection(key.command('ls').description('list the keys'))
    .option('--json', 'print them as JSON')
    .action(async (options: Options) => {
      await using client = await connect(context, options);
      const keys = await client.keys.list();
      const nowMs = context.clock.now();
      if (options.json === true) printJson(context, keys);
      else
        print(
          context,
          table(
            ['ID', 'NAME', 'RIGHT', 'MADE', 'STATE'],
            keys.map(({ keyId, name, readOnly, builder, createdAtMs, revokedAtMs }) => [
              keyId,
              name,
              readOnly ? 'read' : builder ? 'build' : 'write',
              `${duration(nowMs - createdAtMs)} ago`,
              revokedAtMs === null ? 'live' : 'revoked',
            ]),
          ),
        );
    });
  withConnection(key.command('revoke <keyId>').description('take a key back, from now on and for good')).action(
    async (keyId: string, options: ConnectionOptions) => {
      await using client = await connect(context, options);
      await client.keys.revoke(keyId);
      say(context, `key ${keyId} is revoked`);
    },
  );
}
