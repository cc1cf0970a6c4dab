export { buildApp, type App } from './app.ts';
export { ApiserverConfigSchema, type ApiserverConfig } from './config.ts';
