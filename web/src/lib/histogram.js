// Counting for charts.

const SHOWN = 0.98; // of all values: a few that took long would press the others into one bar

/** Values in so many bins of one width, from zero on; the last one has all that are larger, too. */
export function bins(values, number) {
  if (!values.length) return { edges: [], counts: [] };
  const ordered = [...values].sort((a, b) => a - b);
  const most = 1.1 * ordered[Math.floor(SHOWN * (ordered.length - 1))] || 1;
  const width = most / number;
  const counts = new Array(number).fill(0);
  for (const value of values) counts[Math.min(number - 1, Math.floor(value / width))]++;
  return { edges: counts.map((_, at) => at * width).concat(most), counts };
}

/** Whole numbers, one bin each. */
export function wholes(values) {
  if (!values.length) return { edges: [], counts: [] };
  const least = Math.min(...values);
  const counts = new Array(Math.max(...values) - least + 1).fill(0);
  for (const value of values) counts[value - least]++;
  return { edges: counts.map((_, at) => least + at - 0.5).concat(least + counts.length - 0.5), counts };
}

export const mean = (values) =>
  values.length ? values.reduce((sum, value) => sum + value, 0) / values.length : null;
