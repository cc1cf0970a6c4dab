/** The architecture of this machine, in OCI's words. */
export const hostArchitecture = (): string => (process.arch === 'x64' ? 'amd64' : process.arch);
