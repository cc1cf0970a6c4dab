import { EnvironmentNameSchema } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';

const names = compileSchema(EnvironmentNameSchema);

/** Checked before the work of making one, which may take long and leaves layers. @throws PlatformError `invalid_argument` */
export const environmentName = (text: string): string => names.parse(text, { what: 'the name of the environment' });
