/** Something that happens once, and that any number may wait for; it costs nothing until somebody does. */
export class Latch {
  #isOpen = false;
  #waiting: PromiseWithResolvers<undefined> | undefined;

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Resolves when it is open. */
  get opened(): Promise<undefined> {
    if (this.#isOpen) return Promise.resolve(undefined);
    this.#waiting ??= Promise.withResolvers<undefined>();
    return this.#waiting.promise;
  }

  /** Idempotent. */
  open(): void {
    this.#isOpen = true;
    this.#waiting?.resolve(undefined);
    this.#waiting = undefined;
  }
}
