/** What a bundle for browsers gets: everything but the ids, whose check needs a key and `node:crypto`. */
export * from './cause.ts';
export * from './edge/methods.ts';
export * from './errors.ts';
export * from './limits.ts';
export * from './network-address.ts';
export * from './network-destination.ts';
export * from './network-policy.ts';
export * from './policy-profiles.ts';
export * from './public/environment.ts';
export * from './public/environment-usage.ts';
export * from './public/exec.ts';
export * from './public/file.ts';
export * from './public/layer-release.ts';
export * from './public/pack.ts';
export * from './public/policy.ts';
export * from './public/port.ts';
export * from './public/sandbox.ts';
