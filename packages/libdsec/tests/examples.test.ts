import { run, SystemClock } from '@dsec/kit';
import type { DSecClient, Sandbox } from '../src/index.ts';
import { lacking, TestServer } from '@dsec/testkit';
import { mkdir, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const SOURCES = join(import.meta.dirname, '../src');
const ROOT = join(import.meta.dirname, '../../..');
/** Beside the sources, so that imports resolve as they do there. */
const SCRATCH = join(import.meta.dirname, `.examples-${process.pid}`);

interface Example {
  readonly name: string;
  readonly code: string;
  /** What the comments behind its `console.log` say that it prints. */
  readonly printed: readonly string[];
}

interface Surroundings {
  readonly client: DSecClient;
  readonly sandbox: Sandbox;
  readonly console: {
    readonly log: (...values: readonly unknown[]) => void;
    readonly error: (...values: readonly unknown[]) => void;
  };
}

async function findExamples(): Promise<readonly Example[]> {
  const examples: Example[] = [];
  for (const path of (await readdir(SOURCES, { recursive: true })).filter((name) => name.endsWith('.ts')).toSorted()) {
    const text = await readFile(join(SOURCES, path), 'utf8');
    for (const [, block = ''] of text.matchAll(/\* @example\n\s*\* ```ts\n([\s\S]*?)\n\s*\* ```/g)) {
      const code = block.replaceAll(/^\s*\* ?/gm, '');
      examples.push({ name: `${path} ${examples.length}`, ...parsed(code) });
    }
  }
  const readme = await readFile(join(ROOT, 'README.md'), 'utf8');
  for (const [, block = ''] of readme.matchAll(/```ts\n([\s\S]*?)\n```/g)) {
    examples.push({ name: 'README.md', ...parsed(block.replace(/^import .*$/m, '')) });
  }
  return examples;
}

function parsed(code: string): Pick<Example, 'code' | 'printed'> {
  return { code, printed: [...code.matchAll(/console\.log\(.*\); \/\/ (.*)$/gm)].map((match) => match[1] ?? '') };
}

/** The example as a module, with what it does not make itself handed in. */
function moduleOf(code: string): string {
  const given = ['client', 'sandbox'].filter((name) => !new RegExp(`(?:const|using) ${name} =`).test(code));
  return `import { DSecClient, type Sandbox } from '../../src/index.ts';
export async function example(given: { client: DSecClient; sandbox: Sandbox; console: Pick<Console, 'log' | 'error'> }): Promise<void> {
const { ${[...given, 'console'].join(', ')} } = given;
${code}
}
void DSecClient;
`;
}

const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');
const examples = await findExamples();

describe.skipIf(lack !== undefined)(
  `the examples in the documentation of the SDK${lack === undefined ? '' : ` (${lack})`}`,
  () => {
    let server: TestServer | undefined;

    beforeAll(async () => {
      await mkdir(SCRATCH);
      for (const [index, { code }] of examples.entries())
        await writeFile(join(SCRATCH, `example-${index}.ts`), moduleOf(code));
      server = await TestServer.start({ volumeSize: '16G' });
      process.env.DSEC_ENDPOINT = server.endpoint;
      process.env.DSEC_API_KEY = server.adminKey;
    }, 900_000);

    afterAll(async () => {
      delete process.env.DSEC_ENDPOINT;
      delete process.env.DSEC_API_KEY;
      await rm(SCRATCH, { recursive: true, force: true });
      await server?.[Symbol.asyncDispose]();
    }, 120_000);

    test('there are some, and they fit the types of the SDK', async () => {
      expect(examples.length).toBeGreaterThan(4);
      const config = {
        extends: join(ROOT, 'tsconfig.json'),
        compilerOptions: { noUnusedLocals: false, noUnusedParameters: false },
        include: ['*.ts'],
      };
      await writeFile(join(SCRATCH, 'tsconfig.json'), JSON.stringify(config));
      const tsc = [process.execPath, join(ROOT, 'node_modules/typescript/bin/tsc'), '-p', SCRATCH] as const;
      const { stdout } = await run(tsc, {
        clock: new SystemClock(),
        env: { PATH: '/usr/bin:/bin' },
        timeoutMs: 60_000,
        okExitCodes: [0, 1, 2],
      });
      expect(stdout.toString()).toBe('');
    });

    test.each(examples.map((example, index) => [example.name, index] as const))(
      '%s prints what it says',
      async (_name, index) => {
        const { client } = server ?? expect.unreachable();
        await using sandbox = await client.runContainer({
          containerImage: 'debian',
          memoryLimitMb: 128,
          diskLimitMb: 256,
        });
        const lines: string[] = [];
        const failures: string[] = [];
        const module = (await import(join(SCRATCH, `example-${index}.ts`))) as {
          readonly example: (given: Surroundings) => Promise<void>;
        };
        const log = (...values: readonly unknown[]): void =>
          void lines.push(values.map((value) => String(value).trim()).join(' '));
        await module.example({
          client,
          sandbox,
          console: { log, error: (...values) => void failures.push(values.join(' ')) },
        });
        expect(failures).toEqual([]);
        for (const said of examples[index]?.printed ?? []) expect(lines).toContain(said);
        const left = (await client.sandboxes().toArray()).filter(({ sandboxId }) => sandboxId !== sandbox.sandboxId);
        expect(left).toEqual([]);
      },
    );
  },
);
