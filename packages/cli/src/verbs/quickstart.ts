import { PlatformError } from '@dsec/contract';
import type { Command } from 'commander';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { connectLocal } from '../connection.ts';
import { print, type Context } from '../context.ts';
import { DataDirectory, exists } from '../server/data-directory.ts';
import { requireRoot } from '../server/installation.ts';
import { Supervisor } from '../server/supervisor.ts';
import { releaseVolume } from '../server/volume.ts';
import { duration, printable, size } from '../table.ts';

/** What the sandbox is told to do: real work on real files. */
const PROGRAM = `import os, sys
sizes = {}
for directory, _, names in os.walk("/usr"):
    for name in names:
        path = os.path.join(directory, name)
        sizes[path] = os.lstat(path).st_size
largest = max(sizes, key=sizes.get)
with open("report.txt", "w") as report:
    report.write("python %s found %d files in /usr; the largest is %s\\n" % (sys.version.split()[0], len(sizes), largest))
print("wrote report.txt as uid", os.getuid(), "in", os.getcwd())
`;

export function quickstartVerb(program: Command, context: Context): void {
  program
    .command('quickstart')
    .description('the main job once, step by step, on a server of its own that it removes again (as root)')
    .option('--keep', 'leave the server data where it is, for a look')
    .action(async (options: { readonly keep?: boolean }) => {
      requireRoot('quickstart');
      const steps = new Steps(context);
      const data = new DataDirectory(await mkdtemp(join(tmpdir(), 'dsec-quickstart-')));
      try {
        await mainJob(context, data, steps);
      } finally {
        steps.begin('cleaning up');
        await cleanUp(context, data, options.keep === true);
        steps.end(options.keep === true ? `kept ${data.path}` : 'nothing is left');
      }
      print(context, '\nThat is all. Next: `sudo bin/dsec up`, then `bin/dsec --help` or the example in README.md.');
    });
}

async function mainJob(context: Context, data: DataDirectory, steps: Steps): Promise<void> {
  const { installation } = context;
  steps.begin(`starting a server (its data: ${data.path})`);
  await using supervisor = await Supervisor.start(
    {
      data,
      listen: { host: '127.0.0.1', port: 0 },
      volume: { path: undefined, sizeBytes: undefined },
      maxSandboxes: 64,
      poolBlanks: undefined,
      blob: undefined,
      network: { cidr: undefined, isDemanded: false },
      servicesFile: undefined,
      webhookFile: undefined,
      variables: {},
    },
    { ...context, onStep: () => undefined },
  );
  steps.end(`launcher, edge and apiserver answer at ${supervisor.endpoint}`);
  await using client = await connectLocal(data);
  await client.open();

  const recipe = join(installation.root, 'environments/debian.yaml');
  const cache = join(installation.root, '.cache/environments');
  steps.begin('building an environment from environments/debian.yaml (the first time: about a minute)');
  const { buildEnvironment } = await import('../build-environment.ts');
  const quiet = { step: () => undefined, detail: () => undefined, done: () => undefined, failed: () => undefined };
  const environment = await buildEnvironment(context, client, data, { file: recipe, cache }, quiet);
  steps.end(`environment ${environment.name}: ${size(environment.image.sizeBytes)} as one immutable layer`);

  steps.begin('creating a sandbox of it');
  const sandbox = await client.runContainer({
    containerImage: environment.name,
    memoryLimitMb: 256,
    diskLimitMb: 1024,
    cpuCoresLimit: 1,
    ttlRunningStop: 300,
    metadata: { from: 'quickstart' },
  });
  steps.end(`sandbox ${sandbox.sandboxId} is ready`);

  steps.begin('running a command in it');
  const hello = await sandbox.runShell('echo "hello from $(. /etc/os-release && echo "$PRETTY_NAME")"');
  steps.end(`exit ${hello.exitCode}: ${printable(hello.stdout.trim())}`);
  expect(hello.exitCode === 0 && hello.stdout.startsWith('hello from '), 'the command did not print what it should');

  steps.begin('writing a program into it and running that');
  await sandbox.files.write('/root/report.py', PROGRAM);
  const program = await sandbox.exec(['python3', 'report.py'], { cwd: '/root', timeoutMs: 30_000 });
  steps.end(`exit ${program.exitCode}: ${printable((program.stdout || program.stderr).trim())}`);
  expect(program.exitCode === 0, 'the program failed');

  steps.begin('reading back the file that it wrote');
  const report = await sandbox.files.readText('/root/report.txt');
  steps.end(printable(report.trim()));
  expect(report.startsWith('python 3'), 'the file is not what the program wrote');

  steps.begin('stopping the sandbox');
  const stopped = await sandbox.stop();
  steps.end(`${stopped.state}, cause: ${stopped.cause?.kind ?? 'none'}`);
  expect((await client.sandboxes().toArray()).length === 0, 'a sandbox is left');
}

function expect(condition: boolean, message: string): void {
  if (!condition) throw new PlatformError('internal', message);
}

async function cleanUp(context: Context, data: DataDirectory, keep: boolean): Promise<void> {
  if (await exists(data.volume)) await releaseVolume(context.installation, data, context.clock);
  if (!keep) await rm(data.path, { recursive: true, force: true });
}

/** Prints each step and what it took. */
class Steps {
  readonly #context: Context;
  #count = 0;
  #startedMs = 0;

  constructor(context: Context) {
    this.#context = context;
  }

  begin(text: string): void {
    this.#count += 1;
    this.#startedMs = this.#context.clock.monotonicMs();
    print(this.#context, `${this.#count}. ${text}`);
  }

  end(text: string): void {
    print(this.#context, `   ${text}  (${duration(this.#context.clock.monotonicMs() - this.#startedMs)})`);
  }
}
