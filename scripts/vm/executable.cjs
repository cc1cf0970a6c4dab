// Prints the test program that cargo has built: executable.cjs MESSAGES KIND NAME, where MESSAGES are those of `cargo test --no-run --message-format json`.
const { readFileSync } = require('node:fs');

const [file, kind, name] = process.argv.slice(2);
const messages = readFileSync(file, 'utf8')
  .split('\n')
  .filter((line) => line.startsWith('{'))
  .map((line) => JSON.parse(line));
const found = messages.filter(
  ({ reason, executable, profile, target }) =>
    reason === 'compiler-artifact' &&
    executable &&
    profile.test &&
    target.kind.includes(kind) &&
    (kind === 'lib' || target.name === name),
);
const last = found.at(-1);
if (last === undefined) throw new Error(`cargo has built no ${kind} ${name}`);
console.log(last.executable);
