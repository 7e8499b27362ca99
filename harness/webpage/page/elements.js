// Elements and figures as words, for the page's scripts.

export const { number, clock } = harnessCharts;

export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

const real = (value) => typeof value === "number";

// as the report rounds (harness/metrics/numbers.py): by the interval, and never onto the limit or to its other side
export function figure([value, low, high] = [null, null, null], limit = null) {
  if (!real(value)) return [number(value), real(low) ? `at least ${number(low)}` : ""];
  const size = Math.floor(Math.log10(Math.abs(value) || 1)), half = real(low) && real(high) ? (high - low) / 2 : 0;
  let digits = Math.max(2 - size, 0);
  if (half > 0) {
    const lead = Math.floor(Math.log10(half)) - (half / 10 ** Math.floor(Math.log10(half)) < 2 ? 1 : 0);
    digits = Math.max(Math.min(-lead, Math.max(3 - size, 0)), 1 - size);
  }
  const round = (v, n) => Number(n < 0 ? Math.round(v * 10 ** n) / 10 ** n : v.toFixed(n));
  const say = (v, n) => (real(v) ? round(v, n).toLocaleString("en", { minimumFractionDigits: Math.max(n, 0), maximumFractionDigits: Math.max(n, 0) }) : number(v));
  let own = digits;
  while (limit !== null && own < 3 && Math.sign(value - limit) !== Math.sign(round(value, own) - limit)) own += 1;
  const ends = low === null ? "" : high === null || high === "inf" ? `at least ${say(low, digits)}` : `${say(low, digits)} to ${say(high, digits)}`;
  return [say(value, own), ends];
}
