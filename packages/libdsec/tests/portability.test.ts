import { run, SystemClock } from '@dsec/kit';
import { rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { build, type Rolldown } from 'vite';
import { expect, test } from 'vitest';
import { sandboxInfo, started, exited, ScriptedServer } from './scripted-server.ts';

const entry = join(import.meta.dirname, '../src/index.ts');

async function bundle(kind: 'browser' | 'node'): Promise<string> {
  const output = (await build({
    configFile: false,
    logLevel: 'error',
    ssr: { noExternal: true },
    build: {
      write: false,
      minify: false,
      target: kind === 'node' ? 'node20' : 'es2022',
      ...(kind === 'node' ? { ssr: entry } : { lib: { entry, formats: ['es'] as const, fileName: 'sdk' } }),
    },
  })) as Rolldown.RolldownOutput | readonly Rolldown.RolldownOutput[];
  const first = Array.isArray(output)
    ? (output as readonly Rolldown.RolldownOutput[])[0]
    : (output as Rolldown.RolldownOutput);
  return first?.output[0].code ?? '';
}

test('a bundle for browsers holds nothing of Node', async () => {
  const code = await bundle('browser');
  expect(code).toContain('DSecClient');
  expect(code.match(/["']node:[a-z/]+["']|__vite-browser-external|tar-stream/g) ?? []).toEqual([]);
});

test('a bundle for Node 20 uses nothing that came later', async () => {
  const code = await bundle('node');
  expect(code).toContain('DSecClient');
  expect(
    code.match(/\b(?:Promise\.(?:withResolvers|try)|(?:Object|Map)\.groupBy|Array\.fromAsync|RegExp\.escape)\(/g) ?? [],
  ).toEqual([]);
});

test('Node 20 runs the SDK', async ({ skip }) => {
  const node = '/usr/bin/node';
  const clock = new SystemClock();
  const version = await run([node, '--version'], { clock }).catch(() => undefined);
  if (version === undefined || !version.stdout.toString().startsWith('v20.')) skip('the machine has no Node 20');
  await using server = await ScriptedServer.start((exchange) => {
    if (exchange.method === 'GET') exchange.answer(sandboxInfo);
    else {
      exchange.send(started, exited({ exitCode: 42 }));
      exchange.response.end();
    }
  });
  const file = join(import.meta.dirname, `.bundle-${process.pid}.mjs`);
  const script = `
    const client = new DSecClient({ endpoint: '${server.endpoint}', apiKey: 'key' });
    const sandbox = await client.getSandbox('s0001');
    const result = await sandbox.exec(['true']);
    console.log(result.exitCode);
    await client.close();`;
  await writeFile(file, `${await bundle('node')}\n${script}`);
  try {
    const { stdout } = await run([node, file], { clock, timeoutMs: 20_000 });
    expect(stdout.toString()).toBe('42\n');
  } finally {
    await rm(file);
  }
});
