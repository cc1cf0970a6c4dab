/** What behaviour may cost an edge. Programs choose how much of it there is: whoever tells of it has a budget for each sandbox, and here everything has a bound. */

/** Events that are kept for those who listen or come later, of all sandboxes. */
export const MAX_KEPT_EVENTS = 4096;
/** Streams of events that are open, and those of one project. */
export const MAX_LISTENERS = 128;
export const MAX_PROJECT_LISTENERS = 16;

/** Acts of one sandbox that wait until it is known which command they belong to. */
export const MAX_WAITING_ACTS = 256;
/** Sandboxes whose commands are asked for at the same time, and how long one may take to answer. */
export const LOOKUPS = 8;
export const LOOKUP_TIMEOUT_MS = 1000;
/** A command that was found is believed to be that of the same process this long. */
export const KNOWN_FOR_MS = 2000;
/** Sandboxes whose commands are known at the same time. */
export const MAX_KNOWN_SANDBOXES = 1024;

/** Commands that are remembered with their arguments: the newest of all sandboxes. */
export const MAX_COMMANDS = 16_384;
/** Characters of one of them, all arguments together. */
export const MAX_COMMAND_CHARS = 512;

/** Bytes of one report, of all that are in memory, and of one beyond that. */
export const MAX_REPORT_BYTES = 98_304;
export const MAX_ALL_REPORTS_BYTES = 64 * 1024 * 1024;
export const LEAST_REPORT_BYTES = 8192;
/** How long a report may be newer than its file, and how many files are written in that time. */
export const FLUSH_MS = 2000;
export const MAX_FLUSHED = 64;
