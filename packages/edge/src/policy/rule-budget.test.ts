import { expect, it } from 'vitest';
import { RuleBudget } from './rule-budget.ts';

it('holds as many rules as a node takes, and gives back what it held', () => {
  const budget = new RuleBudget(10);
  const first = budget.hold(6);
  const full = expect.objectContaining({
    code: 'no_capacity',
    details: { resource: 'networkRules', limit: 10, current: 6, requested: 5 },
  }) as Error;
  expect(() => budget.hold(5)).toThrow(full);
  const second = budget.hold(4);
  expect(() => first.change(7)).toThrow(expect.objectContaining({ code: 'no_capacity' }) as Error);
  expect(budget.used).toBe(10);
  first.change(2);
  second.change(8);
  second.release();
  second.release();
  expect(budget.used).toBe(2);
});

it('takes what is in force already, and lets it go down', () => {
  const budget = new RuleBudget(10);
  const adopted = budget.adopt(30);
  budget.hold(0);
  expect(() => budget.hold(1)).toThrow(expect.objectContaining({ code: 'no_capacity' }) as Error);
  adopted.change(20);
  adopted.change(9);
  budget.hold(1);
  expect(budget.used).toBe(10);
});
