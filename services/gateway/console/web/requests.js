// Live and queued requests: the most pressing ones, filtered where they are, not here.
import { useState } from "preact/hooks";
import { html, count, seconds, known, Empty } from "/console/parts.js";
import { Sessions } from "/console/sessions.js";
import { follow } from "/console/stream.js";

const asked = { sort: "slack", class: "", tenant: "", worker: "", phase: "", session: "", rows: "50" };
export const queryOf = () => new URLSearchParams(Object.entries(asked).filter(([, value]) => value)).toString();

const SORTS = { slack: "least slack", wait: "longest wait", age: "oldest", output: "most tokens" };
const PHASES = ["queued", "prefill", "decode", "moving", "retrying"];
const TONES = { queued: "warn", prefill: "info", decode: "ok", moving: "calm", retrying: "bad" };

function Select({ name, title, options, changed }) {
  return html`<label>${title}<select name=${name} value=${asked[name]} onChange=${(event) => { asked[name] = event.target.value; changed(); }}>
    ${options.map(([value, text]) => html`<option value=${value} selected=${asked[name] === value}>${text}</option>`)}</select></label>`;
}

export function Requests({ now }) {
  const [, redraw] = useState(0);
  const found = now.requests || { order: [], rows: {}, open: 0, read: 0 };
  const changed = () => { redraw((n) => n + 1); follow(queryOf()); };
  const any = [["", "any"]], classes = Object.keys(now.promises || {}).map((name) => [name, name]);
  const tenant = (event) => { asked.tenant = event.target.value; changed(); };
  const session = (event) => { asked.session = event.target.value; changed(); };
  const filters = now.source === "live";
  return html`${!filters && html`<p class="note">The film has the 50 requests with the least slack.</p>`}
    ${filters && html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
      <${Select} name="sort" title="First" changed=${changed} options=${Object.entries(SORTS)} />
      <${Select} name="phase" title="Phase" changed=${changed} options=${[...any, ...PHASES.map((p) => [p, p])]} />
      <${Select} name="class" title="Class" changed=${changed} options=${[...any, ...classes]} />
      <${Select} name="worker" title="Worker" changed=${changed} options=${[...any, ...Object.keys(now.workers || {}).map((id) => [id, id])]} />
      <label>Tenant<input name="tenant" value=${asked.tenant} onChange=${tenant} /></label>
      <label>Session<input name="session" value=${asked.session} onChange=${session} /></label>
      <span class="note">${found.order.length} shown of ${found.open} open at ${now.gateway.id}${found.read < found.open ? `; ${found.read} were looked at just now` : ""}</span>
    </form>`}
    ${found.order.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Requests"><table>
      <thead><tr><th>Request</th><th>Phase</th><th>Class</th><th>Tenant</th><th>Worker</th><th class="n">Prompt</th><th class="n">Output</th><th class="n">Wait</th><th class="n">Age</th><th class="n">Slack</th></tr></thead>
      <tbody>${found.order.map((id) => [id, found.rows[id]]).filter(([, row]) => row).map(([id, row]) => html`<tr key=${id} data-request=${id}>
        <td><a href=${`#/life/${encodeURIComponent(id)}`}>${id}</a>${row.attempt ? ` (attempt ${row.attempt + 1})` : ""}</td>
        <td><span class=${`pill ${TONES[row.phase]}`}>${row.phase}</span></td><td>${row.class || "–"}</td><td>${row.tenant || "–"}</td>
        <td>${row.worker || "–"}${row.target ? ` → ${row.target}` : ""}</td><td class="n">${count(row.prompt)}</td>
        <td class="n">${count(row.output)}${row.expected ? ` / ~${count(row.expected)}` : ""}</td><td class="n">${seconds(row.waited)}</td><td class="n">${seconds(row.age)}</td>
        <td class=${`n ${known(row.slack) && row.slack < 0 ? "bad" : ""}`}>${known(row.slack) ? (row.slack < 0 ? "▲ " : "") + seconds(row.slack) : "no promise"}</td></tr>`)}</tbody></table></div>`
    : html`<${Empty}>${found.open ? "No open request matches." : "No request is open now. Send one in the Playground."}<//>`}
    <${Sessions} now=${now} />`;
}
