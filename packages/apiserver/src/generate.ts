/** Writes `spec/openapi.json` from the routes. Run from the root of the repository. */
import { mkdirSync, writeFileSync } from 'node:fs';
import { describeApi } from './openapi.ts';

mkdirSync('spec', { recursive: true });
writeFileSync('spec/openapi.json', `${JSON.stringify(await describeApi(), undefined, 2)}\n`);
