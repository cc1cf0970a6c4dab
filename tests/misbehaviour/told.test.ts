/** What is told of those who look for answers: by which way a file was touched, in which profile, and by whose command. */
import { expect, test } from 'vitest';
import { useServer } from '../e2e/started-server.ts';
import { waitFor } from '../e2e/wait-for.ts';
import { attack, expectUnharmed } from './attack.ts';
import { expectNothingTold, expectTold } from './told.ts';

const server = useServer();

const KEY = '/srv/answers/key';

test('a tripwire tells of whoever opens, lists or executes it, whatever it is called by then, and of nobody else', async () => {
  await using neighbour = await server().sandbox({ policy: { tripwires: ['/etc/shadow'] } });
  await using sandbox = await server().sandbox({ policy: { tripwires: ['/etc/shadow', '/usr/share/doc', KEY] } });
  expect((await sandbox.behaviour()).absentTripwires).toEqual([KEY]);
  // What is near to it is no touch.
  await sandbox.exec(['sh', '-c', 'ls /etc; stat /etc/shadow; cat /etc/passwd; ls /usr/share']);
  await expectNothingTold(sandbox);
  const touches = [
    'cat /etc/shadow',
    'ls /usr/share/doc',
    'ln /etc/shadow /etc/other && cat /etc/other',
    'mv /etc/shadow /etc/renamed && cat /etc/renamed',
  ];
  const execs = new Set<string>();
  for (const touch of touches) {
    const exec = sandbox.exec(['sh', '-c', touch]);
    execs.add((await exec.started()).execId);
    expect((await exec).exitCode).toBe(0);
  }
  await expectTold(sandbox, 'tripwire', ['/etc/shadow', '/usr/share/doc'], { command: 'sh' });
  const told: string[] = [];
  await waitFor('an event of each command', async () => {
    told.length = 0;
    for await (const event of server().client.events({
      sandboxId: sandbox.sandboxId,
      kinds: ['tripwire'],
      follow: false,
    })) {
      expect([event.sandboxId, event.outcome]).toEqual([sandbox.sandboxId, 'seen']);
      told.push(event.execId ?? '');
    }
    return [...execs].every((execId) => told.includes(execId));
  });
  expect(told.filter((execId) => !execs.has(execId))).toEqual([]);
  await expectNothingTold(neighbour);
  await expectUnharmed(sandbox, neighbour);
});

test('what strict covers of the kernel is told when it is opened, with the command; a neighbour is not named', async () => {
  await using neighbour = await server().sandbox({ policy: { profile: 'strict' } });
  await using sandbox = await server().sandbox({ policy: { profile: 'strict' } });
  const outcomes = await attack(
    sandbox,
    `
for path in ['/proc/kallsyms', '/proc/keys', '/proc/timer_list', '/sys/firmware']:
    attempt(path, lambda: os.listdir(path) if os.path.isdir(path) else open(path).read())
attempt('namespaces of users', lambda: checked(libc.unshare(0x10000000)))
`,
  );
  for (const [path, outcome] of outcomes)
    expect([path, outcome]).toEqual([path, expect.stringMatching(/^(DONE ?(\[\])?|E[A-Z]+)$/)]);
  await expectTold(sandbox, 'open', ['/proc/kallsyms', '/proc/keys']);
  await expectTold(sandbox, 'call', [/^unshare/]);
  await expectNothingTold(neighbour);
  await expectUnharmed(sandbox, neighbour);
});
