import type { Command } from 'commander';
import { printJson, print, type Context } from '../context.ts';
import { examineHost } from '../doctor/examine-host.ts';
import type { Finding } from '../doctor/finding.ts';
import { exitCodes } from '../report-error.ts';
import { printable } from '../table.ts';

const MARKS = { present: 'ok  ', missing: 'MISS', optional: 'opt ' } as const;

export function doctorVerb(program: Command, context: Context): void {
  program
    .command('doctor')
    .description('look whether this machine has what dsec needs; exits with 1 when something needed is missing')
    .option('--json', 'print the findings as JSON')
    .action(async (options: { readonly json?: boolean }) => {
      const findings = await examineHost(context);
      if (options.json === true) printJson(context, findings);
      else for (const finding of findings) print(context, describe(finding));
      const missing = findings.filter(({ isPresent, isNeeded }) => isNeeded && !isPresent);
      if (options.json !== true) {
        print(
          context,
          missing.length === 0
            ? '\nThis machine has what dsec needs.'
            : `\nMissing: ${missing.map(({ name }) => name).join(', ')}`,
        );
      }
      if (missing.length > 0) context.setExitCode(exitCodes.failed);
    });
}

function describe({ name, isPresent, isNeeded, detail, why, fix }: Finding): string {
  const mark = isPresent ? MARKS.present : isNeeded ? MARKS.missing : MARKS.optional;
  const head = `${mark} ${printable(name)}${detail === '' ? '' : `: ${printable(detail)}`}`;
  return isPresent ? head : `${head}\n       why: ${why}\n       get it: ${fix}`;
}
