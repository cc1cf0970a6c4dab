import { ManualClock } from '@dsec/kit';
import { MemoryStore } from './memory-store.fixture.ts';
import { objectStoreConformance } from './object-store-conformance.ts';

objectStoreConformance('memory', () =>
  Promise.resolve({ store: new MemoryStore(new ManualClock()), [Symbol.asyncDispose]: () => Promise.resolve() }),
);
