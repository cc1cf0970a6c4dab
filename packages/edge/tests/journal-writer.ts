/** Writes records without end and prints each id once it is durable, for the test that kills it. */
import { Journal } from '../src/journal.ts';
import { JournalThread } from '../src/journal-thread.ts';
import { aRecord } from './records.ts';

const [path = '', round = ''] = process.argv.slice(2);
const WRITERS = 8;

const journal = new Journal(await JournalThread.start((error) => process.stderr.write(error.message)));
await journal.open(path, 'boot');
await Promise.all(
  Array.from({ length: WRITERS }, async (_, writer) => {
    for (let count = 0; ; count++) {
      const sandboxId = `s${round}x${writer}x${count}`;
      await journal.begin(aRecord(sandboxId));
      process.stdout.write(`${sandboxId}\n`);
    }
  }),
);
