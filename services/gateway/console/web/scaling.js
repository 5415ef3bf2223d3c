// What the autoscaler decided, from which figures, and why.
import { html, count, share, clock, Chart, Stat, Empty } from "/console/parts.js";

const ROLES = ["prefill", "decode", "convertible", "unified"];
const COLORS = { prefill: "orange", decode: "blue", convertible: "purple", unified: "green" };

export function Scaling({ now }) {
  const decided = now.scaling || [];
  if (!decided.length) {
    const why = now.autoscaler ? "The autoscaler has decided nothing yet." : now.source === "live" ? "No autoscaler runs here: start with --autoscale." : "This run does not scale.";
    return html`<h2>Scaling</h2><${Empty}>${why}<//>`;
  }
  const last = decided[decided.length - 1];
  const roles = ROLES.filter((role) => decided.some((d) => d.targets[role] || ((d.pools || {})[role] || {}).ready));
  const columns = [decided.map((d) => d.at), ...roles.flatMap((role) => [decided.map((d) => d.targets[role]), decided.map((d) => (((d.pools || {})[role] || {}).ready ?? null))])];
  const lines = roles.flatMap((role) => [{ name: `${role}: wanted`, color: COLORS[role], dash: [6, 3] }, { name: `${role}: serving`, color: COLORS[role] }]);
  const changes = decided.filter((d, i) => i === 0 || JSON.stringify(d.targets) !== JSON.stringify(decided[i - 1].targets)).reverse();
  return html`${now.autoscaler && now.autoscaler.answers === false && html`<p class="note bad">The autoscaler does not answer; these are its last known decisions.</p>`}
    <dl class="stats">${roles.map((role) => html`<${Stat} name=${`${role} wanted`} value=${last.targets[role]} more=${`${((last.pools || {})[role] || {}).ready ?? "?"} serving, ${((last.pools || {})[role] || {}).starting ?? 0} starting`} />`)}
      ${last.rates && html`<${Stat} name="Requests" value=${count(last.rates.requests_per_s)} more="/s" /><${Stat} name="Input tokens" value=${count(last.rates.input_tokens_per_s)} more="/s" /><${Stat} name="Output tokens" value=${count(last.rates.output_tokens_per_s)} more="/s" />`}</dl>
    <div class="charts"><${Chart} title=${`Workers, by ${last.policy}`} columns=${columns} lines=${lines} unit=${count} summary=${`Workers wanted and serving: ${roles.map((r) => `${r} ${last.targets[r]}`).join(", ")}`} height=${200} /></div>
    <h2>Pools</h2><div class="scroll" tabindex="0" role="region" aria-label="Pools"><table><thead><tr><th>Role</th><th class="n">Serving</th><th class="n">Starting</th><th class="n">Requests</th><th class="n">Busy</th><th class="n">KV</th></tr></thead>
      <tbody>${Object.entries(last.pools || {}).map(([role, pool]) => html`<tr><td>${role}</td><td class="n">${pool.ready}</td><td class="n">${pool.starting}</td><td class="n">${pool.requests}</td><td class="n">${share(pool.busy)}</td><td class="n">${share(pool.memory)}</td></tr>`)}</tbody></table></div>
    <h2>Changes and reasons</h2><div class="scroll" tabindex="0" role="region" aria-label="Decisions"><table><thead><tr><th>When</th><th>Targets</th><th>Why</th></tr></thead>
      <tbody>${changes.map((d) => html`<tr><td>${clock(d.at)}</td><td>${roles.map((role) => `${role} ${d.targets[role]}`).join(", ")}</td><td class="wrap">${d.reason}</td></tr>`)}</tbody></table></div>`;
}
