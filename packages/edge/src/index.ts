export { EdgeConfigSchema, type EdgeConfig } from './config.ts';
export { Edge, type EdgeParts } from './edge.ts';
