export { type AptSourcesOptions } from './apt-sources.ts';
export { type BuildContext, type BuildProgress, type LayerHandover } from './build-context.ts';
export { buildLayer, type LayerContent, type LayerDraft } from './build-layer.ts';
export { changesIn, ChangeScan, type Change, type Omitted } from './changes/change-scan.ts';
export { packChanges, scanChanges, type ChangesPack } from './changes/pack-changes.ts';
export { runPack, type PackOutcome, type PackSource } from './changes/run-pack.ts';
export { defaultScrubRules, type ScrubRule } from './changes/scrub-rules.ts';
export { Selection, type SelectionOptions, type Verdict } from './changes/selection.ts';
export {
  buildDockerfile,
  type BuiltDockerfile,
  type DockerfileBuild,
  type DockerfilePlatform,
  type RunStep,
  type StepEvent,
} from './dockerfile/dockerfile-build.ts';
export { type DockerfileWarning } from './dockerfile/parse-dockerfile.ts';
export { buildMark, isStaleMark, removeStaleDrafts } from './draft.ts';
export { exportImage, type ExportedImage, type ImageExport } from './oci/export-image.ts';
export { importImage, type ImageImport, type ImportOptions } from './image-import.ts';
export { layerDigest } from './layer-digest.ts';
export { heldLayers, LayerHolds } from './layer-holds.ts';
export { layerBytes, layersOnDisk, removeLayers, type LayerOnDisk } from './layer-removal.ts';
export { NO_CONFIG } from './layer-stack.ts';
export { type LayerRecord } from './layer-record.ts';
export { layerDataPath, layerImagePath, listLayers, readLayerRecord } from './layer-store.ts';
export { type LayerOptions, LayerTree, type StoreFile } from './layer-tree.ts';
export { type LowerNode, type LowerTree, StackedImages, unknownLower } from './lower-tree.ts';
export { removeStaleNotes } from './made-layers.ts';
export { parseRecipe, RecipeSchema, type Recipe } from './recipe.ts';
export { readsFiles } from './recipe-files.ts';
export { buildRecipe, recipeDirectory, type RecipeBuild } from './recipe-build.ts';
export { completeRoot, completeUpperRoot } from './root-skeleton.ts';
export {
  LayerSets,
  type HeldSet,
  type LayerSetsOptions,
  type SetOnDisk,
  type SetPublisher,
} from './sets/layer-sets.ts';
export { MergeThread, type SetMerger } from './sets/merge-thread.ts';
export { AuthFile, type AuthFileSearch } from './registry/auth-file.ts';
export { parsePlatform, pullImage, type ImagePull } from './registry/pull-image.ts';
export { pushImage, type BlobProgress, type ImagePush, type PushedImage } from './registry/push-image.ts';
export { parseReference, type ImageReference } from './registry/reference.ts';
export { type RegistryAccess } from './registry/registry-endpoints.ts';
export { type LayerProgress } from './registry/registry-files.ts';
