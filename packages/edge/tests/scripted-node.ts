/** An edge over a scripted launcher, anew for each test of a file. */
import type { WireClient } from '@dsec/native-link';
import { afterEach, beforeEach } from 'vitest';
import { EdgeFixture, TemporaryDirectory, type EdgeFixtureOptions } from './edge-fixture.ts';
import { LauncherDouble } from './launcher-double.ts';
import { NetworkDouble } from './network-double.ts';

/** Something that a script waits for until the test lets it go on. */
export const held = (): PromiseWithResolvers<void> => Promise.withResolvers<void>();

interface Parts {
  readonly directory: TemporaryDirectory;
  readonly launcher: LauncherDouble;
  readonly network: NetworkDouble;
  fixture: EdgeFixture;
}

/** The node of the test that runs. */
class ScriptedNode {
  readonly #hasNetwork: boolean;
  #parts: Parts | undefined;

  constructor(hasNetwork: boolean) {
    this.#hasNetwork = hasNetwork;
  }

  async start(): Promise<void> {
    const directory = await TemporaryDirectory.make();
    const launcher = await new LauncherDouble(directory.path).start();
    const network = new NetworkDouble({ isLive: (sandboxId) => launcher.sandboxes.has(sandboxId) });
    const fixture = await EdgeFixture.start(this.#optionsFor({ directory, launcher, network }));
    this.#parts = { directory, launcher, network, fixture };
  }

  async end(): Promise<void> {
    const { directory, launcher, fixture } = this.#now;
    await fixture[Symbol.asyncDispose]();
    await launcher[Symbol.asyncDispose]();
    await directory[Symbol.asyncDispose]();
  }

  get directory(): TemporaryDirectory {
    return this.#now.directory;
  }

  get launcher(): LauncherDouble {
    return this.#now.launcher;
  }

  /** As the node would have it if it gave sandboxes a network; it outlives the edge. */
  get network(): NetworkDouble {
    return this.#now.network;
  }

  /** The edge that runs now; a test that closes it puts another here. */
  get fixture(): EdgeFixture {
    return this.#now.fixture;
  }

  set fixture(fixture: EdgeFixture) {
    this.#now.fixture = fixture;
  }

  get client(): WireClient {
    return this.#now.fixture.client;
  }

  options(config: EdgeFixtureOptions['config'] = {}): EdgeFixtureOptions {
    return { ...this.#optionsFor(this.#now), config };
  }

  /** Closes the edge and starts another on the same journal. */
  async restart(config: EdgeFixtureOptions['config'] = {}): Promise<void> {
    await this.fixture[Symbol.asyncDispose]();
    this.fixture = await EdgeFixture.start(this.options(config));
  }

  #optionsFor({ directory, launcher, network }: Omit<Parts, 'fixture'>): EdgeFixtureOptions {
    return {
      launcherSocket: launcher.socket,
      sandboxSockets: launcher.sandboxSockets,
      directory: directory.path,
      sandboxNetwork: this.#hasNetwork ? network : undefined,
    };
  }

  get #now(): Parts {
    if (this.#parts === undefined) throw new Error('the node is there only while a test runs');
    return this.#parts;
  }
}

/** `hasNetwork`: the edge gives its sandboxes that of a double. */
export function useScriptedNode({ hasNetwork = false }: { readonly hasNetwork?: boolean } = {}): ScriptedNode {
  const node = new ScriptedNode(hasNetwork);
  beforeEach(() => node.start());
  afterEach(() => node.end());
  return node;
}
