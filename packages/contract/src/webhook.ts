/** Where a server sends the behaviour of sandboxes: a URL, with a secret that signs what is sent (https://www.standardwebhooks.com). */
import { Type } from 'typebox';
import { behaviourKinds, BehaviourKindSchema, type BehaviourEvent, type BehaviourKind } from './public/behaviour.ts';

export const WebhookSettingsSchema = Type.Object(
  {
    url: Type.String({
      pattern: '^https?://[^\\s#@]+$',
      maxLength: 2048,
      description: 'Where batches are posted to. Any address: it is the operator who names it.',
    }),
    secret: Type.String({
      // 24 to 64 bytes.
      pattern: '^whsec_(?:[A-Za-z0-9+/]{4}){8,21}(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$',
      description: '`whsec_` and the base64 of 24 to 64 random bytes.',
    }),
    kinds: Type.Optional(
      Type.Array(BehaviourKindSchema, {
        minItems: 1,
        maxItems: behaviourKinds.length,
        description: 'Of these kinds alone. Default: all.',
      }),
    ),
  },
  { additionalProperties: false, description: 'Where a server sends the behaviour of sandboxes.' },
);
/** The unions of literals lose their names in the derived type. */
export interface WebhookSettings {
  readonly url: string;
  readonly secret: string;
  /** @default all */
  readonly kinds?: readonly BehaviourKind[];
}

export const WEBHOOK_TYPE = 'sandbox.behaviour';
/** What is posted. */
export interface WebhookPayload {
  readonly type: typeof WEBHOOK_TYPE;
  /** When it was made, ISO 8601. */
  readonly timestamp: string;
  readonly data: {
    /** In the order of their happening. */
    readonly events: readonly BehaviourEvent[];
    /** Events before these that were not delivered; null: nobody knows how many. */
    readonly lost: number | null;
  };
}
