// One prompt, streamed, with its timeline drawn while it runs.
import { useRef, useState } from "preact/hooks";
import { html, several, seconds, useWidth, Empty } from "/console/parts.js";
import { ask, events } from "/console/stream.js";

const KINDS = { wait: ["orange-fill", "waits"], reasoning: ["purple-fill", "reasons"], answer: ["blue-fill", "answers"] };

// The timeline of a run: {began, spans: [[kind, from, to]], tokens: [at], end}, in seconds. Its words
// stand below it, where they have room on every screen.
export function Timeline({ spans, tokens, total }) {
  const [place, width] = useWidth(), at = (t) => (total > 0 ? Math.min(t / total, 1) * width : 0);
  const said = spans.map(([kind, from, to]) => [kind, `${KINDS[kind][1]} ${seconds(to - from)}`]);
  return html`<div ref=${place}><svg class="line" viewBox=${`0 0 ${width} 62`} role="img" aria-label=${`Timeline: ${said.map(([, words]) => words).join(", ")}`}>
    ${spans.map(([kind, from, to]) => html`<rect x=${at(from)} y="4" width=${Math.max(at(to) - at(from), 1)} height="30" fill=${`var(--${KINDS[kind][0]})`} rx="3" />`)}
    ${tokens.map((t) => html`<line x1=${at(t)} x2=${at(t)} y1="37" y2="43" stroke="var(--soft)" />`)}
    <text class="soft" x="0" y="59">0 s</text><text class="soft" x=${width} y="59" text-anchor="end">${seconds(total)}</text></svg>
    <ul class="keys">${said.map(([kind, words]) => html`<li><i style=${{ borderColor: `var(--${KINDS[kind][0]})` }}></i>${words}</li>`)}</ul></div>`;
}

export function Playground({ now }) {
  const [prompt, setPrompt] = useState("Add 17, 25, 8."), [run, setRun] = useState(null), stopper = useRef(null);
  if (now.source !== "live") return html`<h2>Playground</h2><${Empty}>A simulated run answers nothing.<//>`;

  async function send(event) {
    event.preventDefault();
    const began = performance.now(), mine = { spans: [["wait", 0, 0]], tokens: [], reasoning: "", answer: "", total: 0, state: "runs", id: "", error: "" };
    const clockOf = () => (performance.now() - began) / 1e3;
    const show = () => { mine.total = clockOf(); if (mine.state === "runs") mine.spans[mine.spans.length - 1][2] = mine.total; setRun({ ...mine }); };
    const timer = setInterval(show, 200);
    stopper.current = new AbortController();
    try {
      const body = { model: now.gateway.model, stream: true, messages: [{ role: "user", content: prompt }] };
      const response = await ask("/v1/chat/completions", { method: "POST", headers: { "content-type": "application/json", "x-headway-pacing": "off" }, body: JSON.stringify(body), signal: stopper.current.signal });
      mine.id = response.headers.get("x-request-id") || "";
      if (!response.ok) throw new Error((await response.json()).error.message);
      for await (const [, data] of events(response.body)) {
        if (data === "[DONE]") break;
        const said = JSON.parse(data), delta = (said.choices && said.choices[0] && said.choices[0].delta) || {};
        if (said.error) throw new Error(said.error.message);
        for (const [kind, text] of [["reasoning", delta.reasoning_content || delta.reasoning], ["answer", delta.content]]) {
          if (!text) continue;
          const t = clockOf();
          if (mine.spans[mine.spans.length - 1][0] !== kind) { mine.spans[mine.spans.length - 1][2] = t; mine.spans.push([kind, t, t]); }
          mine[kind] += text;
          mine.tokens.push(t);
        }
      }
    } catch (error) {
      mine.error = error.name === "AbortError" ? "stopped" : error.message;
    }
    clearInterval(timer);
    show();
    mine.state = "ended";
    setRun({ ...mine });
  }

  const runs = run && run.state === "runs";
  return html`<h2>Playground</h2><form onSubmit=${send}><label>Prompt<textarea value=${prompt} onInput=${(e) => setPrompt(e.target.value)}></textarea></label>
      <div class="row"><button disabled=${runs}>Send</button>${runs && html`<button type="button" class="plain" onClick=${() => stopper.current.abort()}>Stop</button>`}</div></form>
    ${run && html`<section class="panel"><h3>${runs ? "It runs" : "It has ended"}${run.id && html`<a href=${`#/life/${encodeURIComponent(run.id)}`}>its life</a>`}</h3>
      <${Timeline} spans=${run.spans} tokens=${run.tokens} total=${run.total} />
      ${run.reasoning && html`<div class="answer"><em>${run.reasoning}</em></div>`}
      <div class="answer" data-answer aria-live="polite">${run.answer}</div>${run.error && html`<p class="bad">${run.error}</p>`}
      <p class="note">${several(run.tokens.length, "piece")}. Times are this browser's; the life of the request has the cluster's.</p></section>`}`;
}
