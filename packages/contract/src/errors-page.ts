/** The error table as a page for people. */
import { errorTable, type ErrorRow } from './errors.ts';

const HEAD = `# Errors

Every failure of the HTTP API, the SDK and the CLI carries one of these codes. Over HTTP the body is

\`\`\`json
{"error": {"code": "…", "message": "…", "details": {}, "retryable": false, "infrastructure": false, "fix": "…", "requestId": "…"}}
\`\`\`

*Retryable*: the same request may work later. *Infrastructure*: the platform was at fault, so that an attempt which ended for it must be run again, not scored.

| code | HTTP | retryable | infrastructure | what it means | what to do |
|---|---|---|---|---|---|
`;

const yes = (flag: boolean): string => (flag ? 'yes' : '');
const cell = (text: string): string => text.replaceAll('|', '\\|');

/** `docs/errors.md`. */
export function errorsPage(): string {
  const rows = Object.entries<ErrorRow>(errorTable).map(
    ([code, { status, retryable, infrastructure, meaning, fix }]) => {
      const cells = [`\`${code}\``, status, yes(retryable), yes(infrastructure), cell(meaning), cell(fix)];
      return `| ${cells.join(' | ')} |\n`;
    },
  );
  return HEAD + rows.join('');
}
