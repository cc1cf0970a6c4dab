import { compileSchema, type Parser } from '@dsec/kit';
import { Type, type Static } from 'typebox';

/**
 * The documents of an image, as far as they are used (OCI image specification 1.1; Docker's own forms differ only in media types and in
 * writing null for what is empty). Unknown fields are allowed: the specification says so.
 */
const nullable = <T extends Parameters<typeof Type.Union>[0][number]>(schema: T) =>
  Type.Optional(Type.Union([schema, Type.Null()]));
const strings = Type.Array(Type.String());
const stringMap = Type.Record(Type.String(), Type.String());

const DescriptorSchema = Type.Object({
  mediaType: Type.Optional(Type.String()),
  digest: Type.String(),
  size: Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER }),
  platform: nullable(Type.Object({ os: Type.String(), architecture: Type.String() })),
  annotations: nullable(stringMap),
});
export type Descriptor = Static<typeof DescriptorSchema>;

const IndexSchema = Type.Object({ manifests: Type.Array(DescriptorSchema, { maxItems: 4096 }) });
export const indexParser: Parser<Static<typeof IndexSchema>> = compileSchema(IndexSchema);

const ManifestSchema = Type.Object({
  config: DescriptorSchema,
  layers: Type.Array(DescriptorSchema, { maxItems: 1024 }),
});
export const manifestParser: Parser<Static<typeof ManifestSchema>> = compileSchema(ManifestSchema);

const ConfigSchema = Type.Object({
  architecture: Type.String(),
  os: Type.Optional(Type.String()),
  config: nullable(
    Type.Object({
      Env: nullable(strings),
      User: nullable(Type.String()),
      WorkingDir: nullable(Type.String()),
      Entrypoint: nullable(strings),
      Cmd: nullable(strings),
      Labels: nullable(stringMap),
      ExposedPorts: nullable(Type.Record(Type.String(), Type.Unknown())),
    }),
  ),
  rootfs: Type.Object({ diff_ids: Type.Union([strings, Type.Null()]) }),
});
export type ImageConfig = Static<typeof ConfigSchema>;
export const configParser: Parser<ImageConfig> = compileSchema(ConfigSchema);

const DockerManifestSchema = Type.Array(
  Type.Object({ Config: Type.String(), RepoTags: nullable(strings), Layers: Type.Union([strings, Type.Null()]) }),
  { maxItems: 4096 },
);
export type DockerManifest = Static<typeof DockerManifestSchema>;
export const dockerManifestParser: Parser<DockerManifest> = compileSchema(DockerManifestSchema);
