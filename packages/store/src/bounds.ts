/** What every store demands of keys, values and transactions. */
import { PlatformError } from '@dsec/contract';
import { MAX_KEY_CHARS, MAX_TXN_OPERATIONS, MAX_VALUE_BYTES, type Operation } from './store.ts';

const keyForm = /^[\x21-\x7e]+$/;
const prefixForm = /^[\x21-\x7e]*$/;

const invalid = (message: string, field: string): PlatformError =>
  new PlatformError('invalid_argument', message, { details: { field } });

export function checkKey(key: string): void {
  if (key.length > MAX_KEY_CHARS || !keyForm.test(key)) throw invalid('a key of the store is printable ASCII', 'key');
}

export function checkPrefix(prefix: string): void {
  if (prefix.length > MAX_KEY_CHARS || !prefixForm.test(prefix)) throw invalid('a prefix is printable ASCII', 'prefix');
}

export function checkOperations(operations: readonly Operation[]): void {
  if (operations.length > MAX_TXN_OPERATIONS) throw invalid('too many operations in one transaction', 'operations');
  if (new Set(operations.map(({ key }) => key)).size !== operations.length) {
    throw invalid('a transaction names a key twice', 'operations');
  }
  for (const operation of operations) {
    checkKey(operation.key);
    if (operation.kind === 'put' && Buffer.byteLength(operation.value) > MAX_VALUE_BYTES) {
      throw invalid('the value is larger than the store takes', 'value');
    }
  }
}
