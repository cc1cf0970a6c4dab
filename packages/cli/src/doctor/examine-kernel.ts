import { PlatformError } from '@dsec/contract';
import { compileSchema, run } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import type { Context } from '../context.ts';
import { programEnv } from '../server/volume.ts';
import type { Finding } from './finding.ts';
import { kernelReasons } from './kernel-reasons.ts';

const CheckSchema = Type.Object({
  name: Type.String(),
  ok: Type.Boolean(),
  required: Type.Boolean(),
  detail: Type.String(),
});
type Check = Static<typeof CheckSchema>;
const parser = compileSchema(Type.Object({ checks: Type.Array(CheckSchema) }));

/** The check of the launcher that is found as `root` already. */
const ROOT_CHECK = 'root';
/** EPERM and EACCES in the words of the launcher. */
const DENIED = /Operation not permitted|Permission denied/;

/** What the launcher finds when it tries what it needs of the kernel. */
export async function examineKernel(context: Context): Promise<readonly Finding[]> {
  const { launcher } = context.installation;
  try {
    const { stdout } = await run([launcher, 'doctor'], {
      clock: context.clock,
      env: programEnv,
      timeoutMs: 30_000,
      okExitCodes: [0, 1],
    });
    return findingsOf(JSON.parse(stdout.toString()));
  } catch (error) {
    if (!PlatformError.is(error) && !(error instanceof SyntaxError)) throw error;
    return [
      {
        name: 'kernel',
        isPresent: false,
        isNeeded: true,
        detail: 'the launcher could not look',
        why: 'it tries what it needs: namespaces, mounts, cgroups, quotas, seccomp, Landlock',
        fix: '`make setup`, then `sudo bin/dsec doctor`',
      },
    ];
  }
}

/** What the report of the launcher says; `report` is what it printed. */
export function findingsOf(report: unknown): readonly Finding[] {
  const { checks } = parser.parse(report, { what: 'the report of the launcher', code: 'protocol_error' });
  const isRoot = checks.every(({ name, ok }) => name !== ROOT_CHECK || ok);
  const isUnknown = ({ ok, detail }: Check): boolean => !isRoot && !ok && DENIED.test(detail);
  const known = checks.filter((check) => check.name !== ROOT_CHECK && !isUnknown(check));
  const findings = known.map(({ name, ok, required, detail }) => ({
    name: `kernel: ${name}`,
    isPresent: ok,
    isNeeded: required,
    detail,
    ...(kernelReasons[name] ?? { why: 'the launcher uses it', fix: 'see docs/architecture.md' }),
  }));
  const unknown = checks.filter((check) => check.name !== ROOT_CHECK && isUnknown(check)).map(({ name }) => name);
  return unknown.length === 0 ? findings : [...findings, notLookedAt(unknown)];
}

function notLookedAt(names: readonly string[]): Finding {
  return {
    name: 'kernel: the rest',
    isPresent: false,
    isNeeded: true,
    detail: `only root can try ${names.join(', ')}`,
    why: 'a refusal to another user says nothing about what the kernel can do',
    fix: 'run `sudo bin/dsec doctor`',
  };
}
