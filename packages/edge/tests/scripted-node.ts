/** An edge over a scripted launcher, anew for each test of a file. */
import type { WireClient } from '@dsec/native-link';
import { afterEach, beforeEach } from 'vitest';
import { EdgeFixture, TemporaryDirectory, type EdgeFixtureOptions } from './edge-fixture.ts';
import { LauncherDouble } from './launcher-double.ts';

/** Something that a script waits for until the test lets it go on. */
export const held = (): PromiseWithResolvers<void> => Promise.withResolvers<void>();

interface Parts {
  readonly directory: TemporaryDirectory;
  readonly launcher: LauncherDouble;
  fixture: EdgeFixture;
}

/** The node of the test that runs. */
class ScriptedNode {
  #parts: Parts | undefined;

  async start(): Promise<void> {
    const directory = await TemporaryDirectory.make();
    const launcher = await new LauncherDouble(directory.path).start();
    this.#parts = { directory, launcher, fixture: await EdgeFixture.start(optionsFor(directory, launcher)) };
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
    return { ...optionsFor(this.directory, this.launcher), config };
  }

  /** Closes the edge and starts another on the same journal. */
  async restart(config: EdgeFixtureOptions['config'] = {}): Promise<void> {
    await this.fixture[Symbol.asyncDispose]();
    this.fixture = await EdgeFixture.start(this.options(config));
  }

  get #now(): Parts {
    if (this.#parts === undefined) throw new Error('the node is there only while a test runs');
    return this.#parts;
  }
}

const optionsFor = (directory: TemporaryDirectory, launcher: LauncherDouble): EdgeFixtureOptions => ({
  launcherSocket: launcher.socket,
  sandboxSockets: launcher.sandboxSockets,
  directory: directory.path,
});

export function useScriptedNode(): ScriptedNode {
  const node = new ScriptedNode();
  beforeEach(() => node.start());
  afterEach(() => node.end());
  return node;
}
