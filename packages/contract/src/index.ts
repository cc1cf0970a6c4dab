export * from './browser.ts';
export * from './sandbox-id.ts';
