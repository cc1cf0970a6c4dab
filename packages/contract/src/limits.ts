/** Bounds of the public API, in one place so that schemas, documentation and tests agree. */
export const limits = {
  memoryMib: { minimum: 16, maximum: 1_048_576, default: 1024 },
  cpuMillis: { minimum: 10, maximum: 1_024_000, default: 1000 },
  diskMib: { minimum: 16, maximum: 16_777_216, default: 10_240 },
  pids: { minimum: 8, maximum: 1_000_000, default: 1024 },
  ttlSeconds: { minimum: 1, maximum: 604_800, default: 86_400 },
  ttlRunningStopSeconds: { minimum: 1, maximum: 604_800, default: 1800 },
  /** Most sandboxes in one bulk create or stop. */
  bulk: 4096,
  metadataEntries: 64,
  metadataValueChars: 1024,
  envEntries: 4096,
  envValueBytes: 131_072,
  argvEntries: 16_384,
  argvEntryBytes: 131_071,
  /** JSON bodies; scripts and argv of a command travel in one. */
  bodyBytes: 4_000_000,
  scriptBytes: 2_097_152,
  timeoutMs: { minimum: 1, maximum: 604_800_000 },
  outputLimitBytes: { minimum: 4096, maximum: 16_777_216, default: 1_048_576 },
  pathBytes: 4095,
  pageSize: { minimum: 1, maximum: 1000, default: 100 },
  ptySize: { minimum: 1, maximum: 1000 },
  idempotencyKeyChars: 256,
  /** Paths of one kind that a pack names. */
  packPaths: 1000,
  /** Toolkits of one sandbox. */
  toolkits: 32,
  /** Layers that one sandbox stands on: what overlayfs is asked to search. */
  layers: 64,
  /** Rules of one network policy. */
  networkRules: 8192,
  /** Rules of a policy with all of its phases. */
  policyRules: 16_384,
  /** Ports and ranges of one rule. */
  rulePorts: 16,
  /** Longest `to` of a rule: a name of 253 bytes behind `*.`; IDN may be longer in Unicode than in ASCII. */
  destinationChars: 512,
  /** Of one text in a record of the audit log. */
  auditTextChars: 256,
  /** Facts beside those that every record of the audit log has. */
  auditDetails: 16,
  /** Services that one policy names. */
  services: 64,
  /** Files of one policy whose touch is an event. */
  tripwires: 64,
  /** One of them, as UTF-8. */
  tripwireBytes: 512,
  /** Of what a program tells in an event: a path, a name, all arguments together. */
  behaviourTextChars: 1024,
  /** Arguments of a process or command in an event. */
  behaviourArgv: 32,
  /** Different things in the report of one sandbox. */
  behaviourEntries: 256,
  /** Processes that one entry of a report tells. */
  behaviourSamples: 3,
} as const;
