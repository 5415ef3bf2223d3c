// The last minutes as recorded, replayed by the simulator with another preset or other workers.
import { useState } from "preact/hooks";
import { html, seconds, share, Chart, Stat, Empty } from "/console/parts.js";
import { ask } from "/console/stream.js";

const ROLES = ["prefill", "decode", "unified", "convertible"];
const PRESETS = ["headway", "sbs", "star", "tokenscale", "pascal", "uniboost", "vllm-like"];
const PROFILES = ["llama-8b-a100", "llama-8b-h100", "qwen-7b-4090d", "qwen-7b-h800", "qwen-32b-h100-96", "codellama-34b-h100"];

function Curves({ found }) {
  const control = typeof found.control === "string" ? null : found.control;
  const shown = [["as recorded", found.recorded, "orange", [6, 3]], ["as it ran, replayed", control, "soft", [2, 3]], ["replayed", found.replayed, "blue"]].filter(([, figures]) => figures);
  const at = [...new Set(shown.flatMap(([, figures]) => figures.curve.map(([t]) => t)))].sort((a, b) => a - b);
  const line = (curve) => { const known = new Map(curve); return at.map((t) => (known.has(t) ? 100 * known.get(t) : null)); };
  const columns = [at, ...shown.map(([, figures]) => line(figures.curve))];
  return html`<div class="charts" data-what-if><${Chart} title="Promises kept, by arrival" columns=${columns} unit=${(v) => `${v} %`} relative=${true} height=${220}
      lines=${shown.map(([name, , color, dash]) => ({ name, color, dash }))} summary=${`Promises kept: ${shown.map(([name, figures]) => `${share(figures.kept)} ${name}`).join(", ")}`} /></div>
    <dl class="stats">${shown.map(([name, figures]) => html`<${Stat} name=${`Kept, ${name}`} value=${share(figures.kept)} />`)}
      ${shown.map(([name, figures]) => html`<${Stat} name=${`TTFT P99, ${name}`} value=${seconds(figures.ttft_p99)} />`)}
      <${Stat} name="Requests" value=${found.num_requests} /><${Stat} name="Replayed in" value=${seconds(found.seconds)} more=${found.fidelity === "policies" ? "fast fidelity" : "all cores: this preset has no fast one"} /></dl>
    ${control ? "" : html`<p class="bad">As it ran, it cannot be replayed: ${found.control}</p>`}
    <p class="note">${found.profile === "measured" ? "The replay costs what the workers have measured while they served" : `The replay costs what the profile ${found.profile} says`}, the record what this machine took: compare what is replayed with "as it ran, replayed", not with the record. Requests without a class count as promised a first token in 2 s.</p>`;
}

export function WhatIf({ now }) {
  // Who is gone is shown for as long as the record lasts, and served in it.
  const [recorded] = useState(() => Object.fromEntries(ROLES.map((role) => [role, Object.values(now.workers || {}).filter((card) => card.role === role).length])));
  const [asked, set] = useState(() => ({ preset: now.gateway.preset, policy: "", settings: "", profile: "", ...recorded }));
  const [found, setFound] = useState(null), [runs, setRuns] = useState(false);
  if (now.source !== "live") return html`<h2>What if</h2><${Empty}>A simulated run is its own what-if: simulate it again with another preset.<//>`;
  const field = (name, title, more) => html`<label>${title}<input name=${name} value=${asked[name]} ...${more} onInput=${(e) => set({ ...asked, [name]: e.target.type === "number" ? Number(e.target.value) : e.target.value })} /></label>`;
  const send = async (event) => {
    event.preventDefault();
    setRuns(true);
    try {
      const response = await ask("/console/what-if", { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ ...asked, recorded }) });
      const said = await response.json();
      setFound(response.ok ? said : { error: said.error.message });
    } catch (error) { setFound({ error: String(error.message || error) }); }
    setRuns(false);
  };
  return html`<h2>What if the last ten minutes had been served otherwise?</h2>
    <form class="filters" onSubmit=${send}>
      ${field("preset", "Preset", { list: "presets" })}<datalist id="presets">${PRESETS.map((name) => html`<option value=${name} />`)}</datalist>
      ${ROLES.map((role) => field(role, `${role} workers`, { type: "number", min: 0, max: 64 }))}
      ${field("profile", now.gateway.profile ? `Profile (${now.gateway.profile})` : "Profile", { list: "profiles" })}<datalist id="profiles">${PROFILES.map((name) => html`<option value=${name} />`)}</datalist>
      ${field("policy", "Policies", { placeholder: "batching=trail" })}${field("settings", "Parameters", { placeholder: "batching.c=0.5" })}
      <button disabled=${runs}>${runs ? "It runs" : "Replay"}</button></form>
    ${!found ? html`<${Empty}>Nothing has been replayed yet. ${now.gateway.profile || asked.profile ? "" : "Costs are what the workers have measured; a profile gives others."}<//>` : found.error ? html`<p class="bad" role="alert">${found.error}</p>` : html`<${Curves} found=${found} />`}`;
}
