import { expect, test } from 'vitest';
import { SystemClock } from './clock.ts';
import { run } from './spawn.ts';

const script = (uid: number, gid: number): string => `
  const { dropPrivileges } = await import(${JSON.stringify(new URL('./privileges.ts', import.meta.url).href)});
  dropPrivileges({ uid: ${uid}, gid: ${gid} });
  dropPrivileges({ uid: ${uid}, gid: ${gid} });
  const { readFileSync } = await import('node:fs');
  console.log(readFileSync('/proc/self/status', 'utf8'));
`;

const inChild = (uid: number, gid: number): Promise<string> =>
  run([process.execPath, '--input-type=module', '-e', script(uid, gid)], { clock: new SystemClock() }).then(
    ({ stdout }) => stdout.toString(),
  );

test('leaves no way back to root', async () => {
  const status = await inChild(64_899, 64_898);
  expect(status).toMatch(/^Uid:\t64899\t64899\t64899\t64899$/m);
  expect(status).toMatch(/^Gid:\t64898\t64898\t64898\t64898$/m);
  expect(status).toMatch(/^Groups:\t\s*$/m);
  expect(status).toMatch(/^CapEff:\t0+$/m);
  expect(status).toMatch(/^CapPrm:\t0+$/m);
});

test('refuses to stay root', async () => {
  await expect(inChild(0, 0)).rejects.toMatchObject({ details: { exitCode: 1 } });
});
