import fc from 'fast-check';
import { envVariable } from '@dsec/kit';
import { expect, test } from 'vitest';
import { xmlElements, xmlEscaped, xmlText } from './s3-xml.ts';

const fuzzMs = Number(envVariable('DSEC_FUZZ_SECONDS') ?? 1) * 1000;

test('finds elements and texts', () => {
  const xml = '<R><A><K>one</K></A><A><K>t&amp;w&#111;</K></A><N>3</N></R>';
  expect(xmlElements(xml, 'A').map((element) => xmlText(element, 'K'))).toEqual(['one', 't&wo']);
  expect(xmlText(xml, 'N')).toBe('3');
  expect(xmlText(xml, 'M')).toBeUndefined();
  expect(xmlElements('<A>half', 'A')).toEqual([]);
  expect(xmlText('<K>&#x110000;&unknown;</K>', 'K')).toBe('&#x110000;&unknown;');
});

test('fuzz: reads back every text that it escapes, and takes any bytes', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'binary' }), fc.string(), (text, noise) => {
      expect(xmlText(`${noise.replaceAll('<', '')}<K>${xmlEscaped(text)}</K>`, 'K')).toBe(text);
      xmlElements(noise, 'K');
      xmlText(noise, 'K');
    }),
    { numRuns: 1_000_000, interruptAfterTimeLimit: fuzzMs, markInterruptAsFailure: false },
  );
});
