import { readFileSync } from 'node:fs';
import { PlatformError, WebhookSettingsSchema, type WebhookSettings } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';

const parser = compileSchema(WebhookSettingsSchema);

/** @throws PlatformError `config_invalid` */
export function readWebhook(file: string): WebhookSettings {
  let value: unknown;
  try {
    value = JSON.parse(readFileSync(file, 'utf8'));
  } catch (cause) {
    // Not the cause of text that is no JSON: it shows some of it, which is a secret.
    const reason =
      cause instanceof SyntaxError
        ? { details: { field: 'webhookFile' } }
        : { details: { field: 'webhookFile' }, cause };
    throw new PlatformError('config_invalid', 'the file of the webhook cannot be read', reason);
  }
  // The schema has checked it; its derived type has lost the names of literals.
  return parser.parse(value, { what: 'the file of the webhook', code: 'config_invalid' }) as WebhookSettings;
}
