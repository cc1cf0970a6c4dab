/** The order of semantic versions (semver.org 11), with or without a `v` before them. */
export function compareVersions(a: string, b: string): number {
  const [left, right] = [parts(a), parts(b)];
  for (const index of [0, 1, 2]) {
    const difference = (left.numbers[index] ?? 0) - (right.numbers[index] ?? 0);
    if (difference !== 0) return difference;
  }
  if (left.pre === right.pre) return 0;
  if (left.pre === '') return 1;
  if (right.pre === '') return -1;
  return comparePrereleases(left.pre.split('.'), right.pre.split('.'));
}

function parts(version: string): { readonly numbers: readonly number[]; readonly pre: string } {
  const [core = '', ...rest] = version.replace(/^v/, '').replace(/\+.*$/, '').split('-');
  return { numbers: core.split('.').map(Number), pre: rest.join('-') };
}

function comparePrereleases(a: readonly string[], b: readonly string[]): number {
  for (let index = 0; index < Math.max(a.length, b.length); index++) {
    const [left, right] = [a[index], b[index]];
    if (left === undefined) return -1;
    if (right === undefined) return 1;
    if (left === right) continue;
    const [isLeft, isRight] = [/^[0-9]+$/.test(left), /^[0-9]+$/.test(right)];
    if (isLeft && isRight) return Number(left) - Number(right);
    if (isLeft !== isRight) return isLeft ? -1 : 1;
    return left < right ? -1 : 1;
  }
  return 0;
}
