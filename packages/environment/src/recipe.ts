import {
  type EnvironmentKind,
  environmentKinds,
  EnvironmentNameSchema,
  EnvSchema,
  PlatformError,
} from '@dsec/contract';
import { compileSchema, type Parser } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import { parseDocument } from 'yaml';

const closed = { additionalProperties: false } as const;
const AbsolutePath = Type.String({ pattern: '^/[^\\u0000]*$', maxLength: 4095 });
const AccountName = Type.String({ pattern: '^[a-z_][a-z0-9_-]{0,31}$' });
const AccountId = Type.Integer({
  minimum: 1,
  maximum: 65_533,
  description: 'Sandboxes have 64 Ki ids; 65534 is nobody.',
});

const RecipeFileSchema = Type.Object(
  {
    path: AbsolutePath,
    content: Type.Optional(Type.String({ maxLength: 1_048_576 })),
    source: Type.Optional(Type.String({ minLength: 1, maxLength: 4095, description: 'Relative to the recipe.' })),
    mode: Type.Optional(Type.String({ pattern: '^[0-7]{3,4}$', description: 'Octal, in quotes. Default 0644.' })),
    owner: Type.Optional(
      Type.String({
        pattern: '^[a-z0-9_][a-z0-9_-]{0,31}(:[a-z0-9_][a-z0-9_-]{0,31})?$',
        description: 'Default root:root.',
      }),
    ),
  },
  closed,
);

const RecipeTreeSchema = Type.Object(
  {
    path: AbsolutePath,
    source: Type.String({ minLength: 1, maxLength: 4095, description: 'A directory, relative to the recipe.' }),
  },
  closed,
);

const RecipeUserSchema = Type.Object(
  {
    name: AccountName,
    uid: AccountId,
    gid: Type.Optional(AccountId),
    shell: Type.Optional(AbsolutePath),
    sudo: Type.Optional(Type.Literal('nopasswd')),
  },
  closed,
);

export const RecipeSchema = Type.Object(
  {
    name: EnvironmentNameSchema,
    description: Type.Optional(Type.String({ maxLength: 1024 })),
    kind: Type.Optional(
      Type.Union(
        environmentKinds.map((kind) => Type.Literal(kind)),
        { description: 'What it is: a root file system (`base`, default), or files to stand above one.' },
      ),
    ),
    suite: Type.Optional(
      Type.String({
        pattern: '^[a-z][a-z0-9-]{1,31}$',
        description: 'A release such as bookworm; `host` (default) is the one of this machine.',
      }),
    ),
    variant: Type.Optional(Type.Union([Type.Literal('minbase'), Type.Literal('apt')])),
    components: Type.Optional(
      Type.Array(Type.String({ pattern: '^[a-z][a-z0-9-]{0,31}$' }), { minItems: 1, maxItems: 8 }),
    ),
    packages: Type.Optional(
      Type.Array(Type.String({ pattern: '^[a-z0-9][a-z0-9+.-]{1,127}(=[A-Za-z0-9.+:~-]{1,127})?$' }), {
        maxItems: 2000,
      }),
    ),
    aptSources: Type.Optional(Type.Union([Type.Literal('none'), Type.Literal('host')])),
    files: Type.Optional(Type.Array(RecipeFileSchema, { maxItems: 1000 })),
    trees: Type.Optional(Type.Array(RecipeTreeSchema, { maxItems: 64, description: 'Whole directories.' })),
    env: Type.Optional(EnvSchema),
    user: Type.Optional(AccountName),
    workdir: Type.Optional(AbsolutePath),
    users: Type.Optional(Type.Array(RecipeUserSchema, { maxItems: 64 })),
    commands: Type.Optional(
      Type.Array(Type.String({ minLength: 1, maxLength: 65_536, pattern: '^[^\\u0000]*$' }), { maxItems: 256 }),
    ),
  },
  closed,
);
/** The union of literals loses their names in the derived type. */
export type Recipe = Omit<Static<typeof RecipeSchema>, 'kind'> & { readonly kind?: EnvironmentKind };
export type RecipeFile = Static<typeof RecipeFileSchema>;
export type RecipeUser = Static<typeof RecipeUserSchema>;

const parser: Parser<Static<typeof RecipeSchema>> = compileSchema(RecipeSchema);

/** What only a root file system is made with. */
const baseOnly = ['suite', 'variant', 'components', 'packages', 'aptSources', 'user', 'users', 'commands'] as const;

const MAX_RECIPE_BYTES = 4 * 1024 * 1024;

/**
 * Parses a recipe.
 *
 * @throws PlatformError `recipe_invalid`; `details.field` names what is wrong, `details.line` the line of a mistake in the YAML
 */
export const parseRecipe = (text: string): Recipe => {
  if (Buffer.byteLength(text) > MAX_RECIPE_BYTES) throw invalid('', `is longer than ${MAX_RECIPE_BYTES} bytes`);
  const document = parseDocument(text, { uniqueKeys: true, strict: true, version: '1.2' });
  const [problem] = [...document.errors, ...document.warnings];
  if (problem !== undefined) {
    throw new PlatformError('recipe_invalid', `The recipe is no valid YAML: ${problem.message}`, {
      details: { field: '', line: problem.linePos?.[0].line ?? 0 },
    });
  }
  let value: unknown;
  try {
    value = document.toJS({ maxAliasCount: 0 });
  } catch (cause) {
    throw new PlatformError('recipe_invalid', 'The recipe has YAML aliases, which are not supported', {
      details: { field: '' },
      cause,
    });
  }
  // The schema has checked it.
  const recipe = parser.parse(value, { what: 'the recipe', code: 'recipe_invalid' }) as Recipe;
  const { kind = 'base' } = recipe;
  if (kind === 'base' && recipe.trees !== undefined) throw invalid('trees', 'goes with a workspace or toolkit only');
  if (kind === 'toolkit' && recipe.workdir !== undefined) throw invalid('workdir', 'is not for a toolkit to say');
  const surplus = kind === 'base' ? undefined : baseOnly.find((field) => recipe[field] !== undefined);
  if (surplus !== undefined) throw invalid(surplus, `does not go with a ${kind}, which is files only`);
  for (const [index, { path }] of (recipe.trees ?? []).entries()) {
    if (path.split('/').includes('..')) throw invalid(`trees.${index}.path`, 'must be without ..');
  }
  for (const [index, file] of (recipe.files ?? []).entries()) {
    const field = `files.${index}`;
    if ((file.content === undefined) === (file.source === undefined)) {
      throw invalid(field, 'must have either content or source');
    }
    if (file.path.split('/').includes('..') || file.path.endsWith('/')) {
      throw invalid(`${field}.path`, 'must name a file, without ..');
    }
  }
  const names = (recipe.users ?? []).map(({ name }) => name);
  if (new Set(names).size < names.length) throw invalid('users', 'has a name twice');
  return recipe;
};

const invalid = (field: string, reason: string): PlatformError =>
  new PlatformError('recipe_invalid', `the recipe: ${field} ${reason}`, { details: { field, reason } });
