export { compilePolicy, type CompiledPolicy, type CompileOptions, type PolicyFlags } from './policy/compile.ts';
export { loadServices } from './services/service.ts';
