/**
 * The webhook of a server: `--webhook` names the operator's file, and `keys/webhook.json` keeps what is in it for the apiserver. Its secret is in a file since
 * everybody on the machine sees the arguments of a command.
 */
import { rm } from 'node:fs/promises';
import { PlatformError, WebhookSettingsSchema } from '@dsec/contract';
import { compileSchema, writeDurably } from '@dsec/kit';
import { readInput } from '../input-file.ts';
import { APISERVER_USER, exists, type DataDirectory } from './data-directory.ts';

/** Instead of a file: no webhook from now on. */
const NO_WEBHOOK = 'none';
const MAX_BYTES = 65_536;
const parser = compileSchema(WebhookSettingsSchema);

/**
 * Keeps the webhook of a file; without one the one that was named before stays. Says where it is kept; undefined when there is none.
 * @throws PlatformError `config_invalid` with `details.field`; `file_not_found`
 */
export async function keepWebhook(data: DataDirectory, file: string | undefined): Promise<string | undefined> {
  if (file === NO_WEBHOOK) await rm(data.webhookFile, { force: true });
  else if (file !== undefined) {
    const settings = parse(await readInput(file, { what: 'file of the webhook', maxBytes: MAX_BYTES }));
    await writeDurably(data.webhookFile, `${JSON.stringify(settings, null, 2)}\n`, {
      mode: 0o400,
      owner: APISERVER_USER,
    });
  }
  return (await exists(data.webhookFile)) ? data.webhookFile : undefined;
}

function parse(text: string): object {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    // What the parser says of it may show the secret.
    throw new PlatformError('config_invalid', 'the file of the webhook is not JSON', {
      details: { field: '--webhook' },
    });
  }
  return parser.parse(value, { what: 'the file of the webhook', code: 'config_invalid' });
}
