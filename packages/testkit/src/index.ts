export { expectNoLeak, groupName, takeHostSnapshot, type HostSnapshot } from './host-snapshot.ts';
export { lacking, type Requirement } from './requirements.ts';
export { TestServer, type DaemonName, type TestServerOptions } from './test-server.ts';
export { waitFor } from './wait-for.ts';
