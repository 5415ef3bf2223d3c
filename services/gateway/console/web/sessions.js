// Sessions: who sits where, how much of its prompt was cached there, and why it went there.
import { html, count, several, seconds, share, Empty } from "/console/parts.js";

const MOST_CHARS = 48;
const short = (name) => (name.length > MOST_CHARS ? name.slice(0, MOST_CHARS - 1) + "…" : name);

function State({ row, held, now }) {
  if (held) return html`<span class="pill warn" title=${`${several(held.hit, "token")} of its prompt are cached there${held.longest_wait ? `; after ${seconds(held.longest_wait)} it goes anywhere` : ""}`}>waits for ${held.unit}</span>`;
  if (row.running) return html`<span class="pill ok">turn runs</span>`;
  return html`<span class="pill calm">idle ${seconds(Math.max(0, now.now - row.idle_since))}</span>`;
}

export function Sessions({ now }) {
  const found = now.sessions || { rows: {}, running: 0, idle: 0 }, rows = Object.values(found.rows), cluster = now.cluster || {};
  const held = cluster.held || {};
  return html`<h2>Sessions</h2><p class="note">${several(found.running, "session")} with a turn now, ${count(found.idle)} idle at ${now.gateway.id}${rows.length < found.running + found.idle ? `; the newest ${rows.length} are shown` : ""}.${cluster.num_held ? ` ${several(cluster.num_held, "request")} in all wait for the unit that has their prompt.` : ""}</p>
    ${rows.length ? html`<div class="scroll" tabindex="0" role="region" aria-label="Sessions"><table>
      <thead><tr><th>Session</th><th>Tenant</th><th>State</th><th>Last on</th><th>Why there</th><th class="n">Turns</th><th class="n">Cached</th><th class="n">Age</th></tr></thead>
      <tbody>${rows.map((row) => html`<tr key=${row.tenant + "/" + row.session} data-session=${row.session}>
        <td title=${row.session}>${row.request ? html`<a href=${`#/life/${encodeURIComponent(row.request)}`}>${short(row.session)}</a>` : short(row.session)}</td><td>${row.tenant || "–"}</td>
        <td><${State} row=${row} held=${row.request && held[row.request]} now=${now} /></td><td>${row.workers.join(" → ") || "–"}</td><td class="wrap">${row.why || "–"}</td>
        <td class="n">${count(row.turns)}</td><td class="n">${share(row.cached)}</td><td class="n">${seconds(Math.max(0, now.now - row.began_at))}</td></tr>`)}</tbody></table></div>`
    : html`<${Empty}>No session was named. A client names one with the header <code>x-session-id</code>.<//>`}`;
}
