/** Every bound of the mirror services. */

export const MAX_SERVICES = 64;
export const MAX_SERVICE_HEADERS = 32;
export const MAX_PINNED_VERSIONS = 65_536;

/** Connections of all sandboxes, and of one. */
export const MAX_CONNECTIONS = 1024;
export const MAX_CONNECTIONS_EACH = 32;
/** With so many, each sandbox may have few. */
export const CROWDED_CONNECTIONS = 512;
export const MAX_CONNECTIONS_CROWDED = 4;
/** Requests of one sandbox at once. */
export const MAX_REQUESTS_EACH = 64;
/** Connections to one upstream; requests wait for one of them. */
export const MAX_UPSTREAM_CONNECTIONS = 64;
export const MAX_TARGET_CHARS = 4096;
export const MAX_HEADER_BYTES = 16_384;
/** For the head of a request to come, and between two of one connection. */
export const HEAD_MS = 10_000;
/** Without a byte, on either side. */
export const IDLE_MS = 60_000;
export const CONNECT_MS = 10_000;

/** An index page or list that is read to be filtered. */
export const MAX_DOCUMENT_BYTES = 64 * 1024 * 1024;
/** Such pages that are held at once. */
export const MAX_DOCUMENTS = 8;
export const MAX_DOCUMENTS_WAITING = 256;
/** Versions of one Go module whose times are asked for. */
export const MAX_GO_VERSIONS = 4096;
export const GO_LOOKUPS = 16;
/** Times of versions that are remembered; they never change. */
export const MAX_KNOWN_TIMES = 65_536;
/** The part of a target that an event tells. */
export const MAX_TOLD_CHARS = 200;
