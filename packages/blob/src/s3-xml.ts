/**
 * The little XML that the used part of S3 answers with: elements by name, without attributes that matter. What is not found is undefined; a
 * bound on the length of an answer is kept by who reads it.
 */
const ENTITIES: Readonly<Record<string, string>> = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'" };

function decoded(text: string): string {
  return text.replace(
    /&(?:#x([0-9a-fA-F]{1,6})|#(\d{1,7})|(\w{2,4}));/g,
    (whole, hex?: string, decimal?: string, name?: string) => {
      if (name !== undefined) return ENTITIES[name] ?? whole;
      const point = hex === undefined ? Number(decimal) : Number.parseInt(hex, 16);
      return point <= 0x10ffff ? String.fromCodePoint(point) : whole;
    },
  );
}

/** What is between the tags of each element of this name, in order; elements of one name are not nested. */
export function xmlElements(xml: string, name: string): readonly string[] {
  const found: string[] = [];
  const close = `</${name}>`;
  for (let at = xml.indexOf(`<${name}>`); at >= 0; at = xml.indexOf(`<${name}>`, at)) {
    const start = at + name.length + 2;
    const end = xml.indexOf(close, start);
    if (end < 0) break;
    found.push(xml.slice(start, end));
    at = end + close.length;
  }
  return found;
}

/** The text of the first element of this name. */
export function xmlText(xml: string, name: string): string | undefined {
  const start = xml.indexOf(`<${name}>`);
  const end = start < 0 ? -1 : xml.indexOf(`</${name}>`, start);
  return end < 0 ? undefined : decoded(xml.slice(start + name.length + 2, end));
}

export const xmlEscaped = (text: string): string =>
  text.replace(/[&<>"]/g, (character) => `&#${character.charCodeAt(0)};`);
