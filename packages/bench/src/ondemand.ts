import { run, SystemNetwork } from '@dsec/kit';
import type { Sandbox } from '@dsec/libdsec';
import { LayerdClient, WireClient } from '@dsec/native-link';
import { TestServer, waitFor } from '@dsec/testkit';
import { chmod, mkdtemp, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ENVIRONMENT, type BenchContext } from './bench-context.ts';
import type { Bar, Findings } from './report.ts';
import { quantiles, ratio, Sample } from './sample.ts';

export const ondemandBars: readonly Bar[] = [
  { name: 'time_over_local', most: 1.1 },
  { name: 'bytes_over_touched', most: 1.3 },
  { name: 'write_saving', least: 0.57 },
];

interface Task {
  readonly name: string;
  /** What a first step of an agent does there. */
  readonly script: string;
}

/** Real environments, made here from `environments/`, and a piece of work in each. */
const TASKS: readonly Task[] = [
  {
    name: 'python',
    script: `cat > test_sum.py <<'END'
import json, sqlite3, unittest, urllib.request
import numpy as np
def test_sum():
    assert int(np.arange(10).sum()) == 45
    assert json.loads(json.dumps({"a": 1})) == {"a": 1}
END
python3 -m pytest -q test_sum.py`,
  },
  {
    name: 'javascript',
    script: `git init -q . && npm init -y >package.log && cat > a.test.js <<'END'
const { test } = require('node:test');
test('sum', () => require('node:assert').equal([1, 2, 3].reduce((a, b) => a + b), 6));
END
node --test a.test.js >test.log && git add . && git -c user.name=a -c user.email=a@b commit -qm first`,
  },
  {
    name: 'java',
    script: `cat > Main.java <<'END'
import java.util.stream.IntStream;
public class Main { public static void main(String[] a) { System.out.println(IntStream.range(0, 10).sum()); } }
END
javac Main.java && java Main`,
  },
  {
    name: 'go',
    script: `cat > main.go <<'END'
package main
import "fmt"
func main() { fmt.Println("sum", 45) }
END
go run main.go`,
  },
  {
    name: 'cpp',
    script: `cat > main.cc <<'END'
#include <iostream>
#include <numeric>
#include <vector>
int main() { std::vector<int> v(10, 1); std::cout << std::accumulate(v.begin(), v.end(), 0); }
END
cat > CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.5)
project(main CXX)
add_executable(main main.cc)
END
cmake . >cmake.log && make >make.log && ./main`,
  },
];
const QUICK_TASKS = ['python', 'javascript'];
const EACH = 12;
const QUICK_EACH = 8;
const WARM_UP = 24;
const SERVER = { volumeSize: '16G', maxSandboxes: 256, poolBlanks: 64 } as const;
const UPLOAD_MS = 600_000;
const PULL_MS = 600_000;
const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';
const ROOT = join(import.meta.dirname, '../../..');
const nameOf = (task: Task): string => `bench-${task.name}`;

/**
 * A burst of tasks in real environments on a node with cold caches: with all layers on its disk; with none, their chunks fetched from the store when they
 * are read; and with none, all of them pulled first. All sides read the same disk, on which the store, too, is a directory: the first side reads what it
 * needs unpacked and as the kernel asks for it, the second packed and in long reads, and finds in memory what it has just written. So `time_over_local` may be
 * below 1, and says nothing of a network.
 *
 * `bytes_over_touched` is what was fetched, unpacked, to what the kernel asks for with all layers on the disk, which is what its page cache holds of them after
 * the first burst. That has its readahead in it, which it leaves off where layers are filled on demand: so this, too, may be below 1. Also how much of each
 * environment its task touches at all, in chunks (paper, table 3).
 */
export async function benchOndemand(context: BenchContext): Promise<Findings> {
  const { clock, say, isQuick, server: local } = context;
  const tasks = TASKS.filter(({ name }) => !isQuick || QUICK_TASKS.includes(name));
  const store = await mkdtemp(join(tmpdir(), 'dsec-bench-blob-'));
  // The edge, which is not root's, reads it.
  await chmod(store, 0o755);
  try {
    for (const name of [ENVIRONMENT, ...tasks.map(nameOf)]) {
      const reuse = ['--reuse', join(ROOT, '.cache/environments')];
      const recipe = join(ROOT, 'packages/bench/environments', `${name.replace('bench-', '')}.yaml`);
      if (name !== ENVIRONMENT) await local.cli(['env', 'build', recipe, ...reuse], { timeoutMs: UPLOAD_MS });
      await local.cli(['env', 'upload', name, '--blob', store], { timeoutMs: UPLOAD_MS });
      say(`${name} is in the store`);
    }
    const burst = new Burst(context, tasks, isQuick ? QUICK_EACH : EACH);
    const layers = await layersOf(local, tasks);

    const here = new Sample();
    await burst.warmUp(local);
    const localMs = await burst.run(local, 'all local', here);
    const touched = await residentBytes(context, local, layers);

    let onDemandMs = 0;
    let fetched = 0;
    let written = 0;
    const shares: Record<string, number> = {};
    const cold = new Sample();
    await onNode(store, tasks, async (node) => {
      // What it fetches for that is none of the tasks'.
      await burst.warmUp(node);
      const before = await askLayerd(context, node, (layerd) => layerd.stats());
      onDemandMs = await burst.run(node, 'on demand', cold);
      const after = await askLayerd(context, node, (layerd) => layerd.stats());
      fetched = after.fetchedBytes - before.fetchedBytes;
      written = after.allocatedBytes - before.allocatedBytes;
      for (const [index, task] of tasks.entries()) {
        const trace = await askLayerd(context, node, (layerd) => layerd.layerTrace(layers[index] ?? ''));
        shares[`touched_share_${task.name}`] = trace.touchedBytes / trace.dataBytes;
      }
    });

    let eagerMs = 0;
    let pulled = 0;
    const eager = new Sample();
    await onNode(store, tasks, async (node) => {
      await dropCaches(context);
      const startedMs = clock.monotonicMs();
      for (const [index, task] of tasks.entries()) {
        // Its first sandbox brings the metadata.
        await burst.begin(node, task);
        pulled += await pullWhole(context, node, layers[index] ?? '');
      }
      const pullMs = clock.monotonicMs() - startedMs;
      say(`all layers are pulled in ${(pullMs / 1000).toFixed(1)} s`);
      await burst.warmUp(node);
      eagerMs = pullMs + (await burst.run(node, 'pulled before', eager));
    });

    return {
      n: 3 * tasks.length * burst.each,
      failures: burst.failures,
      values: {
        ...quantiles('local', here),
        ...quantiles('ondemand', cold),
        ...quantiles('eager', eager),
        local_ms: localMs,
        ondemand_ms: onDemandMs,
        eager_ms: eagerMs,
        touched_bytes: touched,
        transferred_bytes: fetched,
        written_bytes: written,
        pulled_bytes: pulled,
        time_over_local: ratio(onDemandMs, localMs),
        eager_time_over_local: ratio(eagerMs, localMs),
        bytes_over_touched: ratio(written, touched),
        write_saving: 1 - written / pulled,
        ...shares,
      },
      absent: {},
    };
  } finally {
    await rm(store, { recursive: true, force: true });
  }
}

/** A node that has nothing but names. */
async function onNode(store: string, tasks: readonly Task[], use: (node: TestServer) => Promise<void>): Promise<void> {
  await using node = await TestServer.start({ ...SERVER, environments: [], blob: store });
  for (const name of [ENVIRONMENT, ...tasks.map(nameOf)]) await node.cli(['env', 'fetch', name]);
  await use(node);
}

class Burst {
  readonly each: number;
  failures = 0;
  readonly #context: BenchContext;
  readonly #tasks: readonly Task[];

  constructor(context: BenchContext, tasks: readonly Task[], each: number) {
    this.#context = context;
    this.#tasks = tasks;
    this.each = each;
  }

  /** Daemons that have worked for a while, in an environment that no task has. */
  async warmUp(server: TestServer): Promise<void> {
    for (let i = 0; i < WARM_UP; i += 1)
      await this.#one(server, { name: '', script: 'true' }, ENVIRONMENT, new Sample());
  }

  /** All at once, with a full pool and cold caches; how long until the last has ended, in ms. */
  async run(server: TestServer, side: string, sample: Sample): Promise<number> {
    const { clock, say } = this.#context;
    await server.poolFull();
    await dropCaches(this.#context);
    const startedMs = clock.monotonicMs();
    const jobs = Array.from({ length: this.each }, () => this.#tasks).flat();
    await Promise.all(jobs.map((task) => this.#one(server, task, nameOf(task), sample)));
    const ms = clock.monotonicMs() - startedMs;
    say(`${side}: ${jobs.length} tasks in ${(ms / 1000).toFixed(2)} s`);
    return ms;
  }

  /** A sandbox that does nothing. */
  async begin(server: TestServer, task: Task): Promise<void> {
    await this.#one(server, { name: task.name, script: 'true' }, nameOf(task), new Sample());
  }

  async #one(server: TestServer, task: Task, containerImage: string, sample: Sample): Promise<void> {
    const { clock, say } = this.#context;
    let sandbox: Sandbox | undefined;
    try {
      await sample.time(clock, async () => {
        sandbox = await server.client.runContainer({ containerImage, memoryLimitMb: 1024, diskLimitMb: 1024 });
        const { exitCode, stdout, stderr } = await sandbox.runShell(task.script);
        if (exitCode !== 0) throw new Error(`${task.name} ended with ${exitCode}: ${stderr || stdout}`);
      });
    } catch (error) {
      this.failures += 1;
      say(`a task failed: ${String(error)}`);
    } finally {
      await sandbox?.stop();
    }
  }
}

/** The layer of each task's environment. */
async function layersOf(server: TestServer, tasks: readonly Task[]): Promise<readonly string[]> {
  const environments = tasks.map(async (task) => server.client.environments.get(nameOf(task)));
  return (await Promise.all(environments)).map(({ image }) => image.layers[0] ?? '');
}

/** What the page cache holds of the data of layers. */
async function residentBytes({ clock }: BenchContext, server: TestServer, layers: readonly string[]): Promise<number> {
  const files = layers.map((layer) => join(server.data, 'layers', layer.replace('sha256:', ''), 'data'));
  const { stdout } = await run(['fincore', '--bytes', '--noheadings', '--output', 'RES', ...files], {
    clock,
    env: { PATH },
  });
  return stdout
    .toString('latin1')
    .split('\n')
    .filter((line) => line !== '')
    .reduce((sum, line) => sum + Number(line), 0);
}

async function dropCaches({ clock }: BenchContext): Promise<void> {
  await run(['sync'], { clock, env: { PATH }, timeoutMs: UPLOAD_MS });
  await writeFile('/proc/sys/vm/drop_caches', '3');
}

/** Asks for all of a layer and waits until it is here; its bytes. */
async function pullWhole(context: BenchContext, node: TestServer, layer: string): Promise<number> {
  const { dataBytes } = await askLayerd(context, node, async (layerd) => layerd.layerOpen(layer));
  await askLayerd(context, node, (layerd) => layerd.layerPrefetch(layer, [[0, dataBytes]]));
  await waitFor(
    context.clock,
    `all of ${layer}`,
    async () => (await askLayerd(context, node, (layerd) => layerd.stats())).prefetchWaiting === 0,
    PULL_MS,
  );
  const { blocks } = await stat(join(node.data, 'layers', layer.replace('sha256:', ''), 'data'));
  return blocks * 512;
}

async function askLayerd<T>(
  { clock }: BenchContext,
  node: TestServer,
  ask: (layerd: LayerdClient) => Promise<T>,
): Promise<T> {
  const socket = await new SystemNetwork().connectUnix(join(node.data, 'run/layerd.sock'));
  await using wire = WireClient.connect(socket, { role: 'bench', clock });
  return await ask(new LayerdClient(wire));
}
