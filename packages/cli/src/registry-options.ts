/** How a verb speaks to registries. */
export interface RegistryOptions {
  /** Accounts, as `docker login` writes them. @default those of docker */
  readonly authFile?: string | undefined;
  /** Registries that are spoken to in plain HTTP. */
  readonly insecure?: readonly string[] | undefined;
  /** Hosts that are asked first, by registry. */
  readonly mirrors?: Readonly<Record<string, readonly string[]>> | undefined;
}
