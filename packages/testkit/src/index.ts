export { expectNoLeak, groupName, takeHostSnapshot, type HostSnapshot } from './host-snapshot.ts';
export { startDockerRegistry, type DockerRegistry } from './docker-registry.ts';
export { MemoryOutput } from './memory-output.ts';
export { mountedFiles } from './mounted-files.ts';
export { lacking, type Requirement } from './requirements.ts';
export { leftOfNetwork, nodeNetworkOf } from './node-network.ts';
export { TestServer, type DaemonName, type TestServerOptions } from './test-server.ts';
export { type Found, waitFor } from './wait-for.ts';
