// Questions to the gateway. Where keys are set, one is asked for once, and kept for this tab only.

const KEY = "shoal-key";

/** What the gateway says is wrong; `needsKey` if it wants an API key. */
export class Problem extends Error {
  constructor(text, status) {
    super(text);
    this.status = status;
    this.needsKey = status === 401;
  }
}

export function setKey(key) {
  sessionStorage.setItem(KEY, key);
}

async function ask(path, values, signal) {
  const query = new URLSearchParams(values).toString();
  const key = sessionStorage.getItem(KEY);
  let response;
  try {
    response = await fetch(`/observe/${path}${query ? `?${query}` : ""}`, {
      signal,
      headers: key ? { Authorization: `Bearer ${key}` } : {},
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The gateway does not answer. Is the node still running?", 0);
  }
  if (response.ok) return response;
  const said = await response.json().catch(() => ({}));
  throw new Problem(said.error ?? `The gateway answered ${response.status}.`, response.status);
}

/** One JSON answer. */
export async function get(path, values = {}, signal = undefined) {
  return (await ask(path, values, signal)).json();
}

/** Lines of JSON, as they come. */
export async function* lines(path, values = {}, signal = undefined) {
  const response = await ask(path, values, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const parts = (rest + value).split("\n");
    rest = parts.pop();
    for (const part of parts) if (part) yield JSON.parse(part);
  }
}
