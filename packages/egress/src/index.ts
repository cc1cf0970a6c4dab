export { compilePolicy, type CompiledPolicy, type CompileOptions, type PolicyFlags } from './policy/compile.ts';
