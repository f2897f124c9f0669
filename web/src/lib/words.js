// How numbers and names are written, everywhere alike.

const plain = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const count = (value) => plain.format(value);

/** A number of things, of which there may be one. */
export const some = (number, thing) => `${plain.format(number)} ${thing}${number === 1 ? "" : "s"}`;

export function milliseconds(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value < 0.995) return `${value.toFixed(2)} ms`;
  return value < 99.5 ? `${value.toFixed(1)} ms` : `${plain.format(value)} ms`;
}

/** The beginning of an id: enough to tell nodes apart on one page. */
export const short = (id) => (id.length > 14 ? `${id.slice(0, 10)}…` : id);

/** A stream's path, and whose it is. */
export function streamName(id) {
  const slash = id.indexOf("/");
  return { owner: id.slice(0, slash), path: id.slice(slash) };
}

export const clock = (ms) => new Date(ms).toLocaleTimeString("en-GB");

export const percent = (part, digits = 0) => `${(100 * part).toFixed(digits)} %`;

export function figure(value) {
  if (typeof value !== "number") return value;
  if (Number.isInteger(value)) return plain.format(value);
  return Math.abs(value) >= 100 ? value.toFixed(1) : value.toPrecision(4);
}
