// The page: its header, its views by the part of the address after #, and the key that it asks for.
import { render } from "preact";
import { useEffect, useState } from "preact/hooks";
import { html, useSignal, age, Empty } from "/console/parts.js";
import { follow, frame, heardAt, key, link, refused } from "/console/stream.js";
import { Cluster } from "/console/cluster.js";
import { Requests, queryOf } from "/console/requests.js";
import { Life } from "/console/life.js";
import { WhatIf } from "/console/whatif.js";
import { Scaling } from "/console/scaling.js";
import { Playground } from "/console/play.js";

const VIEWS = { cluster: ["Cluster", Cluster], requests: ["Requests", Requests], life: ["Life", Life], whatif: ["What if", WhatIf], scaling: ["Scaling", Scaling], play: ["Playground", Playground] };

function useRoute() {
  const plain = (part) => { try { return decodeURIComponent(part); } catch { return part; } };
  const read = () => location.hash.slice(2).split("/").map(plain);
  const [route, set] = useState(read());
  useEffect(() => {
    const change = () => set(read());
    addEventListener("hashchange", change);
    return () => removeEventListener("hashchange", change);
  }, []);
  return route;
}

function AskKey({ why }) {
  const [value, set] = useState("");
  const give = (event) => { event.preventDefault(); key.set(value); follow(queryOf()); };
  return html`<form class="panel" onSubmit=${give}><h2>This console needs an operator's key</h2>
    <p class="note">${why}</p>
    <div class="row"><label>API key<input type="password" autocomplete="off" value=${value} onInput=${(e) => set(e.target.value)} /></label><button>Look</button></div>
    <p class="note">It is kept in this tab alone. Make one with <code>headway key NAME --operator</code>.</p></form>`;
}

function Link({ state, now }) {
  if (now && now.source === "simulated") return html`<span class="pill info">◆ simulated</span>`;
  if (state !== "live") return html`<span class="pill ${now ? "bad" : "warn"}">${now ? "▲ no answer" : `○ ${state}`}</span>`;
  return Object.keys((now && now.silent) || {}).length ? html`<span class="pill bad">▲ outage</span>` : html`<span class="pill ok">● live</span>`;
}

// Says who does not answer, and how old what is shown is therefore. The age is not read out each second.
function Outage({ now, isLost }) {
  const [, again] = useState(0);
  useEffect(() => {
    const timer = isLost && setInterval(() => again((n) => n + 1), 1000);
    return () => clearInterval(timer);
  }, [isLost]);
  const silent = now.silent || {}, lines = [];
  if (isLost) lines.push(["This gateway does not answer. Everything here is as it was", (Date.now() - heardAt) / 1e3]);
  else {
    if (silent.leader !== undefined) lines.push([`${now.leader ? `The leader ${now.leader.id}` : "No leader"} answers${now.leader ? " no more" : ""}: new requests wait, and fail in time. Workers, windows and moves are as they were`, now.now - silent.leader]);
    if (silent.store !== undefined) lines.push(["The store does not answer. Members and the leader's name are as they were", now.now - silent.store]);
  }
  return html`<div role="alert">${lines.map(([text, since]) => html`<p class="outage">▲ ${text} <span aria-hidden="true">${age(since)}</span> ago.</p>`)}</div>`;
}

// The bar of a simulated run: where the film is, and whether it goes on.
function FilmBar({ film, now }) {
  const jump = (place, hold) => follow(`from=${place}${hold ? "&hold=1" : ""}`);
  return html`<div class="row film"><label>Virtual time ${now.toFixed(0)} s<input type="range" min="0" max=${film.num_frames - 1} value=${film.at} onChange=${(e) => jump(e.target.value, true)} /></label>
    <button class="plain" onClick=${() => jump(film.at, false)}>Play from here</button><button class="plain" onClick=${() => jump(film.at, true)}>Hold</button></div>`;
}

function App() {
  const now = useSignal(frame), state = useSignal(link), why = useSignal(refused);
  const [view, ...rest] = useRoute();
  const [title, View] = VIEWS[view] || VIEWS.cluster;
  useEffect(() => { document.title = `${title} · Headway`; }, [title]);
  const gateway = now && now.gateway;
  const isLost = !!now && state !== "live";
  const skip = (event) => { event.preventDefault(); document.getElementById("main").focus(); };
  return html`<a class="skip" href="#main" onClick=${skip}>Skip to the view</a>
    <header class="bar"><h1><img src="/console/icon.svg" alt="" />Headway</h1>
      ${gateway && html`<span class="who">${gateway.model} · preset ${gateway.preset}</span>`}
      <span role="status"><${Link} state=${state} now=${now} /></span>
      <nav aria-label="Views">${Object.entries(VIEWS).map(([name, [text]]) => html`<a href=${`#/${name}`} aria-current=${text === title ? "page" : undefined}>${text}</a>`)}</nav>
    </header>
    ${now && html`<${Outage} now=${now} isLost=${isLost} />`}
    <main id="main" tabindex="-1" class=${isLost ? "old" : ""}>${now && now.film && html`<${FilmBar} film=${now.film} now=${now.now} />`}${why ? html`<${AskKey} why=${why} />` : now ? html`<${View} now=${now} rest=${rest} />` : html`<${Empty}>Waiting for the first figures.<//>`}</main>`;
}

const root = document.getElementById("app");
root.textContent = "";
render(html`<${App} />`, root);
follow(queryOf());
