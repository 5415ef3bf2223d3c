// The cluster: figures, charts, workers by role, windows, moves, and who leads.
import { html, useSignal, age, count, several, seconds, share, clock, known, Chart, Stat, Empty } from "/console/parts.js";
import { history } from "/console/stream.js";

const STATES = { serving: ["ok", "● serving"], draining: ["warn", "◐ draining"], starting: ["info", "◌ starting"], gone: ["bad", "✕ gone"] };
const ROLES = ["prefill", "decode", "unified", "convertible"];

export function columnsOf(seen, ...names) {
  const places = ["at", ...names].map((name) => seen.columns.indexOf(name));
  return places.map((place) => seen.rows.map((row) => (place < 0 ? null : row[place])));
}

function KvBar({ card }) {
  const ahead = known(card.kv_ahead);
  const said = `KV memory: ${share(card.kv_used)} used, ${share(card.kv_promised)} promised` + (ahead ? `, ${share(card.kv_ahead)} predicted in 10 s` : "");
  return html`<div class="kv" role="img" aria-label=${said} title=${said}>
    <b style=${{ width: `${100 * card.kv_used}%` }}></b><b class="promised" style=${{ width: `${100 * card.kv_promised}%` }}></b>
    ${ahead && html`<i style=${{ left: `calc(${100 * card.kv_ahead}% - 1px)` }}></i>`}</div>`;
}

/** The constants by which a worker's order decides, each with its source. */
function orderOf(order) {
  const shown = (name, value) => value === null ? "never" : name === "ρ" ? share(value) : seconds(value);
  return Object.entries(order).map(([name, [value, source]]) => `${name} ${shown(name, value)} (${source})`).join(", ");
}

function Worker({ id, card }) {
  const [tone, text] = STATES[card.state] || ["calm", card.state];
  const figures = known(card.kv_used);
  return html`<article class=${`panel worker ${card.state}`} data-worker=${id} data-state=${card.state}>
    <h3>${id}<span class=${`pill ${tone}`}>${text}${card.gone_at ? ` since ${card.gone_at > 1e9 ? clock(card.gone_at) : seconds(card.gone_at)}` : ""}</span></h3>
    ${figures && card.state !== "gone" ? html`<${KvBar} card=${card} /><dl>
      <dt>batch</dt><dd>${several(card.batch, "request")}</dd>
      <dt>KV</dt><dd>${share(card.kv_used)}${card.kv_promised > 0.005 ? ` + ${share(card.kv_promised)} promised` : ""}</dd>
      <dt>in 10 s</dt><dd>${known(card.kv_ahead) ? share(card.kv_ahead) : "not predicted"}</dd>
      <dt>queued</dt><dd>${several(card.queued_tokens, "token")}</dd>
      ${card.host_tokens > 0 && html`<dt>in host memory</dt><dd>${several(card.host_tokens, "token")}</dd>`}
      ${card.arriving > 0 && html`<dt>arriving</dt><dd>${several(card.arriving, "request")}</dd>`}
      <dt>pass</dt><dd>${seconds(card.pass_time)}${known(card.profile_pass_time) ? ` (profile ${seconds(card.profile_pass_time)})` : ""}</dd>
      ${card.order && html`<dt>order</dt><dd>${orderOf(card.order)}</dd>`}
      ${card.units > 1 && html`<dt>DP units</dt><dd>${card.units}</dd>`}</dl>`
    : html`<p class="note">${card.state === "gone" ? "Its stream to the leader has ended." : "It has not reported to the leader yet."}</p>`}
  </article>`;
}

function Workers({ workers }) {
  const ids = Object.keys(workers || {}).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  if (!ids.length) return html`<${Empty}>No worker is known.<//>`;
  return ROLES.filter((role) => ids.some((id) => workers[id].role === role)).map((role) => html`
    <h2>${role[0].toUpperCase() + role.slice(1)} workers</h2>
    <div class="cards">${ids.filter((id) => workers[id].role === role).map((id) => html`<${Worker} key=${id} id=${id} card=${workers[id]} />`)}</div>`);
}

function Classes({ now }) {
  const names = [...new Set([...Object.keys(now.promises || {}), ...Object.keys(now.classes || {})])];
  const seen = names.filter((name) => now.classes && now.classes[name]);
  if (!seen.length) return html`<${Empty}>No request has ended in the last minute.<//>`;
  const felt = (name, metric) => {
    const figures = now.classes[name], limit = ((now.promises || {})[name] || {})[metric], p99 = figures[`${metric}_p99`];
    const late = known(limit) && known(p99) && p99 > limit;
    return html`<td class="n">${seconds(figures[`${metric}_p50`])}</td><td class=${`n ${late ? "bad" : ""}`}>${late ? "▲ " : ""}${seconds(p99)}${known(limit) ? ` / ${seconds(limit)}` : ""}</td>`;
  };
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Latencies by class"><table>
    <thead><tr><th>Class</th><th class="n">Ended</th><th class="n">TTFT P50</th><th class="n">P99 / promise</th><th class="n">TTFAT P50</th><th class="n">P99 / promise</th><th class="n">TPOT P50</th><th class="n">P99 / promise</th><th class="n">Promises kept</th></tr></thead>
    <tbody>${seen.map((name) => html`<tr><td>${name || "(no class)"}</td><td class="n">${now.classes[name].ended}${now.classes[name].failed ? ` (${now.classes[name].failed} failed)` : ""}</td>
      ${felt(name, "ttft")}${felt(name, "ttfat")}${felt(name, "tpot")}<td class="n">${share(now.classes[name].kept)}</td></tr>`)}</tbody></table></div>`;
}

function Windows({ cluster }) {
  const models = Object.entries((cluster && cluster.windows) || {});
  if (!models.length) return html`<${Empty}>No window: no leader has been heard.<//>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Windows"><table><thead><tr><th>Model</th><th class="n">Waiting</th><th class="n">At the door</th><th class="n">Tokens</th><th class="n">Left over</th><th class="n">Interval</th><th>Flow</th></tr></thead>
    <tbody>${models.map(([model, w]) => html`<tr><td>${model}</td><td class="n">${w.num_waiting}</td><td class="n">${w.num_at_door}</td><td class="n">${count(w.backlog_tokens)}</td><td class="n">${several(w.longest_wait_cycles, "cycle")}</td><td class="n">${w.interval > 0 ? seconds(w.interval) : "–"}</td><td>${w.flow_level}</td></tr>`)}</tbody></table></div>`;
}

function Moves({ cluster }) {
  const moves = Object.entries((cluster && cluster.moves) || {});
  if (!moves.length) return html`<${Empty}>No request moves now.<//>`;
  return html`<ul class="moves">${moves.map(([id, m]) => html`<li><a href=${`#/life/${encodeURIComponent(id)}`}>${id}</a>: ${m.source_id || "?"} <span aria-label="to">→</span> ${m.target_id}, ${several(m.num_tokens, "token")}${m.is_running ? ", while it runs" : ", handoff"}</li>`)}</ul>
    ${cluster.moving > moves.length && html`<p class="note">and ${cluster.moving - moves.length} more</p>`}`;
}

function Control({ now }) {
  const schedulers = Object.entries(now.schedulers || {});
  return html`<ul class="moves">
    ${schedulers.map(([id, s]) => html`<li>${id} <span class=${`pill ${s.leads ? "ok" : "calm"}`}>${s.leads ? "★ leads" : "stands by"}</span></li>`)}
    ${now.silent && ["leader", "store"].map((name) => { const is = now.silent[name] === undefined;
      return html`<li>${name[0].toUpperCase() + name.slice(1)} <span class=${`pill ${is ? "ok" : "bad"}`}>${is ? `answers${name === "leader" && now.cluster ? `, term ${now.cluster.term}` : ""}` : "✕ does not answer"}</span></li>`; })}
    <li>${now.gateway.id} <span class=${`pill ${now.gateway.status === "ok" ? "ok" : "warn"}`}>${now.gateway.status}</span>${now.gateway.reason ? ` ${now.gateway.reason}` : ""}</li></ul>`;
}

/** What the leader told last, grey and with its age while it does not answer. */
function Told({ now, children }) {
  const since = (now.silent || {}).leader;
  if (since === undefined) return children;
  return html`<div class="old" data-old><p class="note">As of ${age(now.now - since)} ago</p>${children}</div>`;
}

export function Cluster({ now }) {
  const seen = useSignal(history), point = Object.fromEntries(seen.columns.map((name, i) => [name, (now.point || [])[i]]));
  return html`<dl class="stats">
      <${Stat} name="Requests" value=${count(point.ended_per_s)} more="ended/s" /><${Stat} name="Tokens" value=${count(point.tokens_per_s)} more="/s" />
      <${Stat} name="Open" value=${count(now.gateway.open)} more=${`${count(now.gateway.waiting)} without a token`} />
      <${Stat} name="TTFT P50" value=${seconds(point.ttft_p50)} /><${Stat} name="TTFT P99" value=${seconds(point.ttft_p99)} />
      <${Stat} name="Promises kept" value=${share(point.kept)} more="last minute" /></dl>
    <${Told} now=${now}><${Workers} workers=${now.workers} /><//>
    <h2>Over ten minutes</h2>
    <div class="charts">
      <${Chart} title="Requests a second" relative=${now.source === "simulated"} columns=${columnsOf(seen, "arrived_per_s", "ended_per_s")} unit=${count} lines=${[{ name: "arrived", color: "orange" }, { name: "ended", color: "blue" }]}
        summary=${`Requests a second over ten minutes; now ${count(point.arrived_per_s)} arrived and ${count(point.ended_per_s)} ended`} />
      <${Chart} title="TTFT over the last minute" relative=${now.source === "simulated"} columns=${columnsOf(seen, "ttft_p50", "ttft_p99")} unit=${seconds} lines=${[{ name: "P50", color: "blue" }, { name: "P99", color: "orange", dash: [6, 3] }]}
        summary=${`Time to first token; now P50 ${seconds(point.ttft_p50)}, P99 ${seconds(point.ttft_p99)}`} />
      <${Chart} title="Open requests" relative=${now.source === "simulated"} columns=${columnsOf(seen, "open", "waiting")} unit=${count} lines=${[{ name: "open", color: "blue" }, { name: "without a token", color: "purple", dash: [6, 3] }]}
        summary=${`Open requests; now ${count(point.open)}, of which ${count(point.waiting)} have no token`} />
      <${Chart} title="Tokens a second" relative=${now.source === "simulated"} columns=${columnsOf(seen, "tokens_per_s")} unit=${count} lines=${[{ name: "output tokens", color: "green" }]} summary=${`Output tokens a second; now ${count(point.tokens_per_s)}`} />
    </div>
    <h2>Classes, last minute</h2><${Classes} now=${now} />
    <div class="charts"><section><h2>Window</h2><${Told} now=${now}><${Windows} cluster=${now.cluster} /><//></section>
      <section><h2>Moves and handoffs</h2><${Told} now=${now}><${Moves} cluster=${now.cluster} /><//></section>
      <section><h2>Control</h2><${Control} now=${now} /></section></div>`;
}
