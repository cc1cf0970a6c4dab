/** Writes `docs/errors.md` from the error table. Run from the root of the repository. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { errorsPage } from './errors-page.ts';

mkdirSync('docs', { recursive: true });
writeFileSync('docs/errors.md', errorsPage());
