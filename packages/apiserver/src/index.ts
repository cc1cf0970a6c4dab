export { buildApp, type App } from './app.ts';
export { verifyAudit, type AuditProblem, type AuditVerdict } from './audit/verify-audit.ts';
export { ApiserverConfigSchema, type ApiserverConfig } from './config.ts';
