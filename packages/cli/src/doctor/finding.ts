/** One thing that dsec needs, or can use, of its host. */
export interface Finding {
  readonly name: string;
  readonly isPresent: boolean;
  /** Without it dsec does not work; otherwise less of it works. */
  readonly isNeeded: boolean;
  /** What was found. */
  readonly detail: string;
  readonly why: string;
  /** How to get it. */
  readonly fix: string;
}
