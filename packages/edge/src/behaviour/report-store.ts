/** The files of reports: one for each sandbox that has something to tell, as long as the edge knows the sandbox. */
import { mkdir, readdir, readFile, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { writeDurably } from '@dsec/kit';
import { Report } from './report.ts';

const SUFFIX = '.json';

export class ReportStore {
  readonly #directory: string;

  constructor(directory: string) {
    this.#directory = directory;
  }

  /** Makes the directory, and removes what is of no sandbox that the edge knows. */
  async open(isKnown: (sandboxId: string) => boolean): Promise<void> {
    await mkdir(this.#directory, { recursive: true, mode: 0o700 });
    for (const name of await readdir(this.#directory)) {
      const isReport = name.endsWith(SUFFIX) && isKnown(name.slice(0, -SUFFIX.length));
      if (!isReport) await rm(join(this.#directory, name), { force: true });
    }
  }

  /** Undefined when there is none, or none that can be read. */
  async read(sandboxId: string): Promise<Report | undefined> {
    try {
      return Report.parse(await readFile(this.#file(sandboxId), 'utf8'));
    } catch (error) {
      if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
      throw error;
    }
  }

  async write(report: Report): Promise<void> {
    await writeDurably(this.#file(report.sandboxId), JSON.stringify(report.show()));
  }

  async remove(sandboxId: string): Promise<void> {
    await rm(this.#file(sandboxId), { force: true });
  }

  #file(sandboxId: string): string {
    return join(this.#directory, `${sandboxId}${SUFFIX}`);
  }
}
