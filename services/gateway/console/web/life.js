// One request: the parts of its time, what happened in it, and what was decided about it.
import { useEffect, useState } from "preact/hooks";
import { html, count, several, seconds, share, clock, known, useWidth, Empty } from "/console/parts.js";
import { ask } from "/console/stream.js";

// Each kind of part has a colour, a letter for those who do not see it, and words.
const PARTS = {
  submission: ["soft", "S", "with the gateway"], window: ["orange-fill", "W", "waits in the window"], queue: ["orange-fill", "Q", "waits on a worker"],
  prefill: ["green-fill", "P", "its prompt is computed"], placement: ["orange-fill", "L", "waits for a decoding worker"], transfer: ["sky-fill", "T", "its KV travels"],
  way: ["soft", "Y", "messages are on their way"],
  decode: ["blue-fill", "D", "draws tokens"], preempted: ["red-fill", "X", "preempted"], swap: ["purple-fill", "H", "KV comes back from host memory"],
  recompute: ["red-fill", "R", "computes again"], move: ["sky-fill", "M", "moves"], retry: ["red-fill", "A", "its attempt was lost"],
};
const part = (kind) => PARTS[kind] || ["soft", "?", kind];
const us = (value) => seconds(value / 1e6);
const MOST_BARS = 400;

const ROW = 36, BAR = 20, LETTER = 16; // pixels: a worker's row, its bar, the least bar with a letter

function Bars({ life }) {
  const [place, width] = useWidth();
  const total = Math.max(life.total_us, 1), at = (t) => Math.min(t / total, 1) * width;
  const rows = [...new Set(life.parts.map((p) => p.worker_id || life.gateway_id))], rowOf = new Map(rows.map((id, i) => [id, i]));
  const first = life.first_token_us, below = rows.length * ROW, height = below + (known(first) ? 34 : 18);
  const shown = life.parts.slice(0, MOST_BARS), isLate = known(first) && at(first) > width / 2;
  return html`<div ref=${place}><svg class="line" viewBox=${`0 0 ${width} ${height}`} role="img" aria-label=${`${several(life.parts.length, "part")} on ${rows.join(", ")}, ${us(total)} in all; the table below lists them`}>
    ${rows.map((id, i) => html`<g><rect x="0" y=${i * ROW + 14} width=${width} height=${BAR} fill="var(--hush)" rx="3" /><text class="soft" x="2" y=${i * ROW + 11}>${id}</text></g>`)}
    ${shown.map((p) => { const [tone, letter, words] = part(p.kind), y = rowOf.get(p.worker_id || life.gateway_id) * ROW + 14, w = Math.max(at(p.end_us) - at(p.begin_us), 1);
      return html`<g><rect x=${at(p.begin_us)} y=${y} width=${w} height=${BAR} fill=${`var(--${tone})`}><title>${words}: ${us(p.end_us - p.begin_us)}</title></rect>${w >= LETTER && html`<text x=${at(p.begin_us) + w / 2} y=${y + 14} text-anchor="middle" style=${{ fill: "#000" }}>${letter}</text>`}</g>`; })}
    ${known(first) && html`<line x1=${at(first)} x2=${at(first)} y1="4" y2=${below + 4} stroke="var(--text)" stroke-dasharray="3 3" />`}
    ${known(first) && html`<text class="soft" x=${isLate ? at(first) : at(first) + 2} y=${below + 14} text-anchor=${isLate ? "end" : "start"}>first token ${us(first)}</text>`}
    <text class="soft" x="0" y=${height - 3}>0 s</text><text class="soft" x=${width} y=${height - 3} text-anchor="end">${us(total)}</text></svg></div>`;
}

function Delays({ reasons }) {
  const delays = reasons.filter((reason) => reason.is_delay && reason.seconds >= 1e-3);
  if (!delays.length) return html`<p class="note" data-delays>Nothing held it up.</p>`;
  return html`<div data-delays><h3>What held it up</h3><ul>${delays.map((reason) => html`<li><b>${reason.name}</b>, ${seconds(reason.seconds)}: ${reason.why}</li>`)}</ul></div>`;
}

function Sums({ life }) {
  const sums = {};
  for (const p of life.parts) sums[p.kind] = (sums[p.kind] || 0) + p.end_us - p.begin_us;
  const ordered = Object.entries(sums).sort((a, b) => b[1] - a[1]);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Where its time went"><table><thead><tr><th>Where its time went</th><th class="n">Time</th><th class="n">Share</th></tr></thead>
    <tbody>${ordered.map(([kind, sum]) => { const [tone, letter, words] = part(kind); return html`<tr><td><b class="pill" style=${{ background: `var(--${tone})`, color: "#000" }}>${letter}</b> ${words}</td><td class="n">${us(sum)}</td><td class="n">${share(sum / Math.max(life.total_us, 1))}</td></tr>`; })}</tbody></table></div>`;
}

function Moments({ life }) {
  return html`<details open><summary>What happened (${life.moments.length})</summary><div class="scroll" tabindex="0" role="region" aria-label="Moments"><table><thead><tr><th class="n">After</th><th>What</th><th>Worker</th><th class="n">Amount</th><th>Cause</th></tr></thead>
    <tbody>${life.moments.slice(0, MOST_BARS).map((m) => html`<tr><td class="n">${us(m.at_us)}</td><td>${m.kind.replaceAll("_", " ")}</td><td>${m.worker_id || "–"}</td><td class="n">${m.amount || "–"}</td><td class="wrap">${m.cause || "–"}</td></tr>`)}</tbody></table></div></details>`;
}

function Record({ life, reasons }) {
  const tokens = life.tokens;
  return html`<section class="panel"><h2>${life.request_id} <span class=${`pill ${["stop", "length"].includes(life.status) ? "ok" : life.status === "open" ? "info" : "bad"}`}>${life.status}</span></h2>
      <p class="note">Came ${life.arrival_at > 1e9 ? `at ${clock(life.arrival_at)}` : `after ${seconds(life.arrival_at)}`}${life.class ? `, class ${life.class}` : ""}${life.tenant ? `, tenant ${life.tenant}` : ""}${life.session_id ? `, turn ${life.turn} of session ${life.session_id}` : ""}; ${several(tokens.prompt, "prompt token")} (${count(tokens.cached)} cached), ${several(tokens.output, "output token")}${tokens.reasoning ? `, ${count(tokens.reasoning)} of them reasoning` : ""}. ${several(life.crowd.num_ahead, "request")} waited before it.${life.error ? ` ${life.error}` : ""}</p>
      <${Bars} life=${life} /><${Delays} reasons=${reasons} /></section><${Sums} life=${life} /><${Moments} life=${life} />`;
}

// Why a unit was the request's own: what it held and owed, what that costs, and who came second.
function Own({ own, unit }) {
  if (!own) return null;
  return html`<p class="note" data-own>${unit} held ${several(own.hit_tokens, "token")} of the prompt${own.host_tokens ? ` (${count(own.host_tokens)} in host memory)` : ""} and owed ${several(own.owed_tokens, "token")}.
    ${own.cost ? ` Cost ${seconds(own.cost)}${own.runner_up ? `; the runner-up was ${own.runner_up} at ${seconds(own.runner_up_cost)}` : ""}.` : ""}
    ${own.wait ? ` Its turn was expected in ${seconds(own.wait)}; after ${seconds(own.longest_wait)} the request would have gone anywhere.` : ""}</p>`;
}

function Decisions({ found }) {
  if (!found.length) return html`<${Empty}>The leader remembers no decision about it.<//>`;
  return found.map((d) => html`<section class="panel"><h3>${d.question} by ${d.rule}<span class="note">${d.at > 1e9 ? clock(d.at) : seconds(d.at)}</span></h3>
    <p class="note">To ${d.chosen.map(([, unit]) => unit).join(", ")}, after ${seconds(d.chosen[0][3])}; ${d.left} left waiting.</p>
    ${d.chosen.map(([, unit, , , own]) => html`<${Own} own=${own} unit=${unit} />`)}
    <div class="scroll" tabindex="0" role="region" aria-label="Candidates"><table><thead><tr><th>Candidate</th><th class="n">${d.question === "dispatch" ? "Room (tokens)" : "Batch"}</th><th class="n">${d.question === "dispatch" ? "Chunk" : "KV tokens"}</th>${d.considered.some((c) => c.length > 3) ? html`<th class="n">KV predicted</th><th class="n">Score</th>` : ""}<th class="n">Free blocks</th></tr></thead>
      <tbody>${d.considered.map(([unit, load, free, predicted, score]) => html`<tr><td>${d.chosen.some(([, u]) => u === unit) ? "★ " : ""}${unit}</td><td class="n">${load[0]}</td><td class="n">${load[1]}</td>${score ? html`<td class="n">${predicted == null ? "–" : count(Math.round(predicted))}</td><td class="n">${score.map((value) => Number(value.toPrecision(4))).join(", ") || "–"}</td>` : ""}<td class="n">${free}</td></tr>`)}</tbody></table></div></section>`);
}

export function Life({ now, rest }) {
  const id = rest.join("/"), [asked, setAsked] = useState(id), [found, setFound] = useState(null);
  const open = Boolean(now.requests && now.requests.rows[id]), ended = Boolean(found && found.life && [found, ...(found.others || [])].every((x) => !x.life || x.life.status !== "open"));
  const beat = open && !ended ? Math.floor(now.now) : 0;
  useEffect(() => { setFound(null); setAsked(id); }, [id]);
  useEffect(() => {
    if (!id) return undefined;
    let gone = false;
    (async () => {
      try {
        const response = await ask(`/explain/${encodeURIComponent(id)}`), said = await response.json();
        if (!gone) setFound(response.ok ? said : { error: said.error.message });
      } catch (error) { if (!gone) setFound({ error: String(error.message || error) }); }
    })();
    return () => { gone = true; };
  }, [id, beat, open]);
  const look = (event) => { event.preventDefault(); location.hash = `#/life/${encodeURIComponent(asked)}`; };
  const outputs = found && !found.error ? [found, ...(found.others || [])] : [];
  return html`<form class="filters" onSubmit=${look}><label>Request<input name="request" size="40" value=${asked} onInput=${(e) => setAsked(e.target.value)} /></label><button>Show</button></form>
    ${!id ? html`<${Empty}>Give the id of a request (the <code>x-request-id</code> of its answer), or choose one under Requests.<//>` : !found ? html`<${Empty}>Asking.<//>`
    : found.error ? html`<p class="bad">${found.error}</p>` : html`${found.num_older > 0 && html`<p class="note" data-older>This is the newest call of that id; there ${found.num_older === 1 ? "is" : "are"} ${several(found.num_older, "older one")}.</p>`}
      ${outputs.map((output, i) => html`<div data-output=${i}>${outputs.length > 1 && html`<h2>Output ${i + 1} of ${outputs.length}</h2>`}
        ${output.life ? html`<${Record} life=${output.life} reasons=${output.reasons || []} />` : html`<${Empty}>This gateway knows no life of ${output.request_id}.<//>`}<h2>Decisions about it</h2><${Decisions} found=${output.decisions} /></div>`)}`}`;
}
