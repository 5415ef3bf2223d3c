// The stream of the console: one frame, then its changes (RFC 7396). It is opened again when it breaks.
import { signal } from "signals";

export const frame = signal(null);
export const history = signal({ columns: [], rows: [] });
export const link = signal("connecting");
export const refused = signal(null);
export let heardAt = Date.now(); // the newest event, by this machine's clock
const MOST_POINTS = 600;

export const key = {
  get: () => sessionStorage.getItem("headway-key") || "",
  set: (value) => sessionStorage.setItem("headway-key", value),
};

export function ask(path, options = {}) {
  const headers = { ...(options.headers || {}) };
  if (key.get()) headers.authorization = `Bearer ${key.get()}`;
  return fetch(path, { ...options, headers });
}

export function merge(before, patch) {
  const after = { ...before };
  for (const [name, value] of Object.entries(patch)) {
    if (value === null) delete after[name];
    else if (typeof value === "object" && !Array.isArray(value)) {
      const old = after[name];
      after[name] = merge(old && typeof old === "object" && !Array.isArray(old) ? old : {}, value);
    } else after[name] = value;
  }
  return after;
}

function take(name, data) {
  if (name === "history") {
    history.value = { columns: data.columns, rows: data.rows };
    return;
  }
  const next = name === "state" ? data : merge(frame.value || {}, data);
  const { columns, rows } = history.value, last = rows[rows.length - 1];
  if (next.point && (!last || next.point[0] > last[0])) {
    history.value = { columns, rows: [...rows, next.point].slice(-MOST_POINTS) };
  } else if (next.point && last && next.point[0] < last[0]) {
    history.value = { columns, rows: [next.point] };
  }
  frame.value = next;
}

// Yields the events of a text/event-stream body: [name, data].
export async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    rest += value;
    const parts = rest.split("\n\n");
    rest = parts.pop();
    for (const part of parts) {
      let name = "message";
      const data = [];
      for (const line of part.split("\n")) {
        if (line.startsWith("event: ")) name = line.slice(7);
        else if (line.startsWith("data: ")) data.push(line.slice(6));
      }
      if (data.length) yield [name, data.join("\n")];
    }
  }
}

let current = null;

// Follows the stream with this query until another call; a refusal waits for a key.
export async function follow(query) {
  if (current) current.abort();
  const mine = (current = new AbortController());
  let pause = 500;
  while (!mine.signal.aborted) {
    try {
      const response = await ask(`/console/stream?${query}`, { signal: mine.signal });
      if (response.status === 401 || response.status === 403) {
        const said = await response.json();
        refused.value = said.error ? said.error.message : "an operator's key is needed";
        return;
      }
      if (!response.ok) throw new Error(response.status);
      refused.value = null;
      for await (const [name, data] of events(response.body)) {
        if (mine.signal.aborted) return;
        link.value = "live";
        heardAt = Date.now();
        pause = 500;
        take(name, JSON.parse(data));
      }
    } catch (error) {
      if (mine.signal.aborted) return;
    }
    link.value = "reconnecting";
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(pause * 2, 5000);
  }
}
