// Exits 0 when node_modules holds exactly what package-lock.json asks for. Runs on the machine's own Node, whatever its
// age, because the Node that everything else runs on is one of the packages.
'use strict';
const { readFileSync } = require('node:fs');

function installable(path) {
  const { packages } = JSON.parse(readFileSync(path, 'utf8'));
  return Object.entries(packages).filter(([name]) => name.startsWith('node_modules/'));
}

try {
  const wanted = new Map(installable('package-lock.json'));
  const present = new Map(installable('node_modules/.package-lock.json'));
  for (const [name, { version, optional }] of wanted) {
    // An optional package of another platform is left out by npm.
    if (!present.has(name) ? !optional : present.get(name).version !== version) process.exit(1);
  }
  for (const name of present.keys()) if (!wanted.has(name)) process.exit(1);
} catch {
  process.exit(1);
}
