// Colours of the drawing, for both themes. Round trips go from near (blue-green) to far (red):
// lightness changes along with the hue, so that the order is seen without telling hues apart.

// How many links a message has come already: one hue, from light to dark.
const DEPTH = {
  light: ["#7cc4d4", "#4aa3ba", "#1f829e", "#0b6380", "#0a4560", "#0a2c42"],
  dark: ["#e8fbff", "#b5e9f5", "#7fd3e8", "#4db8d4", "#2d97b5", "#1f7893"],
};

export const RTT_MS = [5, 20, 50, 100, 200];

const RAMP = {
  light: ["#0a7f8f", "#2f9e6e", "#a0a11b", "#d98a1f", "#cf5a2b", "#a5243d"],
  dark: ["#56d3e0", "#5fd39a", "#cfd05a", "#f0b04a", "#f0854f", "#ef5f78"],
};

const REGIONS = {
  light: ["#2b6cb0", "#2f855a", "#b7791f", "#9b2c5e", "#6b46c1", "#c05621", "#4a5568"],
  dark: ["#7ab8f5", "#72d39b", "#f0c35c", "#f08fb8", "#b79cf5", "#f5a06a", "#a8b5c5"],
};
const GROUPS = ["eu", "us", "ap", "sa", "ca", "af", ""];
const GROUP_NAMES = {
  eu: "Europe",
  us: "United States",
  ap: "Asia Pacific",
  sa: "South America",
  ca: "Canada",
  af: "Africa, Middle East",
  "": "no region",
};

export function palette(dark) {
  const name = dark ? "dark" : "light";
  return {
    rtt: RAMP[name],
    depth: DEPTH[name],
    unmeasured: dark ? "#46586b" : "#b6c1cc",
    regions: REGIONS[name],
    land: dark ? "#1c2936" : "#e3e8ec",
    coast: dark ? "#2b3b4c" : "#cfd7de",
    sea: dark ? "#101923" : "#f7f9fa",
    ring: dark ? "#101923" : "#ffffff",
    path: dark ? "#ffffff" : "#14202b",
    label: dark ? "#96a5b4" : "#566473",
    head: dark ? "#ffe08a" : "#d4351c",
  };
}

/** Which step of the scale a round trip is on; -1 if it was not measured. */
export function rttStep(rttUs) {
  if (rttUs === null || rttUs === undefined) return -1;
  const ms = rttUs / 1000;
  const step = RTT_MS.findIndex((bound) => ms < bound);
  return step < 0 ? RTT_MS.length : step;
}

export function rttLabel(step) {
  if (step === 0) return `< ${RTT_MS[0]}`;
  return step === RTT_MS.length ? `≥ ${RTT_MS[step - 1]}` : `${RTT_MS[step - 1]}–${RTT_MS[step]}`;
}

/** The part of the world that a region's name begins with. */
export function group(region) {
  const name = region.split("-")[0];
  const at = GROUPS.indexOf(name === "me" ? "af" : name);
  return at < 0 ? GROUPS.length - 1 : at;
}

export const groupName = (at) => GROUP_NAMES[GROUPS[at]];
