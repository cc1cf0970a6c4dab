/** Every bound of the resolver. What comes from a sandbox is meant to exhaust it. */

/** A query, with its EDNS options. One that is longer is no question about a name. */
export const MAX_QUERY_BYTES = 1232;
/** An answer over UDP that no network cuts (DNS Flag Day 2020); a sandbox may ask for less. */
export const MAX_UDP_BYTES = 1232;
export const MIN_UDP_BYTES = 512;
/** Records of one answer from a server, of all sections. */
export const MAX_RECORDS = 256;
/** Addresses of one name; the rest is left out, for everybody alike. */
export const MAX_ADDRESSES = 16;
/** Aliases that are followed for one name. */
export const MAX_ALIASES = 8;

/** How long an answer may be used, whatever its zone says: pins are no older than that, and names are not asked for all the time. */
export const MIN_TTL_S = 1;
export const MAX_TTL_S = 300;
/** How long a name that does not exist is remembered. */
export const NEGATIVE_TTL_S = 5;
/** How long an address may still be connected to when the answer is over: programs keep what they have resolved. */
export const PIN_GRACE_S = 60;
export const MAX_CACHED_NAMES = 8192;

/** Queries to servers that wait for their answer, each with a socket of its own. */
export const MAX_UPSTREAM_QUERIES = 512;
/** Lookups that wait for one of them. */
export const MAX_UPSTREAM_WAITING = 1024;
export const UDP_TRY_MS = 1000;
export const TCP_TRY_MS = 2000;
/** Rounds through all servers. */
export const UPSTREAM_ROUNDS = 2;
/** All of one lookup: what a program waits for one try. */
export const LOOKUP_MS = 4500;
/** Answers that do not fit the question, after which it is asked over TCP: somebody guesses. */
export const MAX_MISFITS = 8;
/** Servers of resolv.conf; the C library takes as many. */
export const MAX_SERVERS = 3;
/** How often resolv.conf is looked at, while there are questions. */
export const SERVERS_CHECK_MS = 5000;

/** Of each sandbox. */
export const QUERIES_PER_SECOND = 200;
export const QUERY_BURST = 1000;
export const MAX_OUTSTANDING = 64;
/** When so many questions of all sandboxes wait, each may have few: a slow zone of a few sandboxes must not keep out the others. */
export const CROWDED_AT = 256;
export const MAX_OUTSTANDING_CROWDED = 4;
/** Pairs of a name and an address that are pinned at once; the gate takes as many. */
export const MAX_PINS = 4096;
/** Different names below one wildcard, over the whole life: each tells its server a label that the sandbox has chosen. */
export const MAX_NAMES_PER_WILDCARD = 512;
/** The same over all wildcards. */
export const MAX_WILDCARD_NAMES = 4096;
export const EVENTS_PER_SECOND = 10;
export const EVENT_BURST = 100;
/** Events that wait for one who listens; what comes then is counted. */
export const MAX_WAITING_EVENTS = 1024;
/** Those alike are one in this time, for as many kinds of all sandboxes at once; what is more is told as it comes. */
export const EVENT_WINDOW_MS = 1000;
export const MAX_EVENT_WINDOWS = 4096;
/** Events that wait for egressd to say which process it was. Below the streams of a connection. */
export const MAX_ASKED_OWNERS = 256;
/** Until events of egressd are asked for again, when what it has told was not understood. */
export const EVENTS_PAUSE_MS = 1000;

/** Lines of the log about failures, for all sandboxes together. */
export const LOG_LINES_PER_SECOND = 1;
export const LOG_BURST = 20;
/** Queries over UDP that wait to be read: what one sandbox sends in a burst must not push out what the others ask. */
export const RECEIVE_BYTES = 4 * 1024 * 1024;

/** Connections for DNS over TCP. */
export const MAX_TCP_CONNECTIONS = 512;
export const MAX_TCP_CONNECTIONS_EACH = 8;
export const TCP_IDLE_MS = 10_000;
/** Queries of one connection that wait for their answer. */
export const MAX_TCP_PIPELINED = 16;

export const MAX_SANDBOXES = 65_536;
