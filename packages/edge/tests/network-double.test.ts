import { NetworkDouble } from './network-double.ts';
import { networkConformance } from './network-conformance.ts';

networkConformance('the double', () => {
  const live = new Set<string>();
  const control = new NetworkDouble({ isLive: (sandboxId) => live.has(sandboxId), services: ['pypi'] });
  return Promise.resolve({
    control,
    service: 'pypi',
    unknownService: 'cran',
    sandbox: () => {
      const sandboxId = `s${live.size}`;
      live.add(sandboxId);
      return Promise.resolve(sandboxId);
    },
    reaches: (sandboxId: string, address: string, port: number) =>
      Promise.resolve(control.reaches(sandboxId, address, port)),
    [Symbol.asyncDispose]: () => control[Symbol.asyncDispose](),
  });
});
