import { Command } from 'commander';
import type { Context } from './context.ts';
import { auditVerb } from './verbs/audit.ts';
import { benchVerb } from './verbs/bench.ts';
import { copyVerb } from './verbs/cp.ts';
import { createVerb } from './verbs/create.ts';
import { doctorVerb } from './verbs/doctor.ts';
import { downVerb } from './verbs/down.ts';
import { environmentVerb } from './verbs/env.ts';
import { eventsVerb } from './verbs/events.ts';
import { execVerb } from './verbs/exec.ts';
import { inspectVerb } from './verbs/inspect.ts';
import { keyVerb } from './verbs/key.ts';
import { logsVerb } from './verbs/logs.ts';
import { listVerb } from './verbs/ls.ts';
import { packVerb } from './verbs/pack.ts';
import { policyVerb } from './verbs/policy.ts';
import { quickstartVerb } from './verbs/quickstart.ts';
import { runVerb } from './verbs/run.ts';
import { shellVerb } from './verbs/shell.ts';
import { stopVerb } from './verbs/stop.ts';
import { upVerb } from './verbs/up.ts';

const VERSION = '0.1.0';

/** The command line of dsec: one file per verb, in the order in which they are met. */
export function createProgram(context: Context): Command {
  const program = new Command('dsec')
    .description('Sandboxes for agents: isolated containers, made in milliseconds, by the thousand.')
    .version(VERSION)
    .enablePositionalOptions()
    .showHelpAfterError('(see --help)')
    .configureOutput({ writeOut: (text) => context.stdout.write(text), writeErr: (text) => context.stderr.write(text) })
    .exitOverride();
  for (const verb of [
    quickstartVerb,
    doctorVerb,
    upVerb,
    downVerb,
    environmentVerb,
    createVerb,
    runVerb,
    execVerb,
    shellVerb,
    copyVerb,
    listVerb,
    inspectVerb,
    logsVerb,
    eventsVerb,
    policyVerb,
    packVerb,
    stopVerb,
    keyVerb,
    auditVerb,
    benchVerb,
  ]) {
    verb(program, context);
  }
  return program;
}
