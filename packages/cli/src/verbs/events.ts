import { behaviourKinds } from '@dsec/contract';
import type { BehaviourEvent, BehaviourKind } from '@dsec/libdsec';
import { Option, type Command } from 'commander';
import { withConnection } from '../arguments.ts';
import { connect, type ConnectionOptions } from '../connection.ts';
import { print, say, type Context } from '../context.ts';
import { printable } from '../table.ts';

interface Options extends ConnectionOptions {
  readonly sandbox?: string;
  readonly kind?: readonly BehaviourKind[];
  readonly after?: string;
  readonly follow?: boolean;
  readonly json?: boolean;
}

const HELP = `
A line is: time, sandbox, kind, what was tried, what came of it, how often, and the command that caused it.
Kinds: ${behaviourKinds.join(', ')}. docs/behaviour.md says what each is, and what is never told.`;

export function eventsVerb(program: Command, context: Context): void {
  const command = program
    .command('events')
    .description('what sandboxes tried that was denied, and which tripwires they touched')
    .addHelpText('after', HELP);
  withConnection(command)
    .option('--sandbox <id>', 'of this sandbox alone')
    .addOption(new Option('--kind <kind...>', 'of these kinds alone').choices(behaviourKinds))
    .option(
      '--after <cursor>',
      'go on after this event, as --json shows its cursor, or with `now` (default: all that is kept)',
    )
    .option('-f, --follow', 'go on with what happens, until it is interrupted')
    .option('--json', 'print one JSON object a line')
    .action(async (options: Options) => {
      await using client = await connect(context, options);
      const { sandbox, kind, after, follow = false } = options;
      const events = client.events({
        ...(sandbox === undefined ? {} : { sandboxId: sandbox }),
        ...(kind === undefined ? {} : { kinds: kind }),
        ...(after === undefined ? {} : { after }),
        follow,
        onLost: (count) => say(context, `${count ?? 'an unknown number of'} events before the next were lost`),
        signal: context.interrupted,
      });
      try {
        for await (const event of events) print(context, options.json === true ? JSON.stringify(event) : line(event));
      } catch (error) {
        // It is how a follower ends.
        if (!context.interrupted.aborted) throw error;
      }
    });
}

function line({
  atMs,
  sandboxId,
  kind,
  what,
  outcome,
  count,
  execId,
  sessionId,
  command,
  process,
}: BehaviourEvent): string {
  const caused = command ?? process?.argv ?? [];
  const by = [
    ...(execId === undefined ? [] : [`exec ${execId}`]),
    ...(sessionId === undefined ? [] : [`session ${sessionId}`]),
    ...(process === undefined ? [] : [`pid ${process.pid} (${process.comm})`]),
    ...(caused.length === 0 ? [] : [`: ${caused.join(' ')}`]),
  ];
  const times = count === 1 ? [] : [`x${count}`];
  return printable([new Date(atMs).toISOString(), sandboxId, kind, what, outcome, ...times, ...by].join('  '));
}
