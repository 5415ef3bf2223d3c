// What every view uses: templates, numbers for people, charts.
import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import htm from "htm";
import { effect } from "signals";

export const html = htm.bind(h);

// Draws a component again when the signal changes.
export function useSignal(signal) {
  const [value, set] = useState(signal.value);
  useEffect(() => effect(() => set(signal.value)), [signal]);
  return value;
}

export const known = (value) => value !== undefined && value !== null && Number.isFinite(value);

export function count(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size >= 1e6) return (value / 1e6).toFixed(1) + " M";
  if (size >= 1e4) return (value / 1e3).toFixed(0) + " k";
  return Number.isInteger(value) ? String(value) : value.toFixed(size < 10 ? 1 : 0);
}

// A number with its word: 1 request, 2 requests.
export const several = (number, one, more = `${one}s`) => `${count(number)} ${number === 1 ? one : more}`;

export function seconds(value) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  if (size < 0.0995) return (value * 1e3).toFixed(size < 0.01 ? 1 : 0) + " ms";
  return size < 100 ? value.toFixed(size < 10 ? 2 : 1) + " s" : Math.round(value) + " s";
}

// How long ago something was, in whole seconds or minutes.
export const age = (value) => (value < 90 ? `${Math.max(0, Math.round(value))} s` : `${Math.round(value / 60)} min`);
export const share = (value) => (known(value) ? (100 * value).toFixed(value > 0.995 && value < 1 ? 1 : 0) + " %" : "–");
export const clock = (at) => new Date(at * 1e3).toLocaleTimeString();
export const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// The width of an element in pixels, from now on: [where it is, how wide]. A drawing of that
// width has letters of their own size on every screen.
export function useWidth(first = 320) {
  const place = useRef(null), [width, set] = useState(first);
  useLayoutEffect(() => {
    const read = () => set(Math.max(Math.floor(place.current.clientWidth), 120));
    const watch = new ResizeObserver(read);
    watch.observe(place.current);
    read();
    return () => watch.disconnect();
  }, []);
  return [place, width];
}

const dark = matchMedia("(prefers-color-scheme: dark)");

// A chart of lines over time. columns: one array per line after that of the instants;
// lines: {name, color, dash}. summary is what a screen reader says.
export function Chart({ title, columns, lines, unit, summary, height = 150, relative = false }) {
  const place = useRef(null), plot = useRef(null);
  const [scheme, setScheme] = useState(dark.matches);
  useEffect(() => {
    const change = () => setScheme(dark.matches);
    dark.addEventListener("change", change);
    return () => dark.removeEventListener("change", change);
  }, []);
  useEffect(() => {
    const element = place.current;
    const axis = { stroke: color("soft"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line") } };
    const options = {
      width: element.clientWidth || 320, height, cursor: { show: false },
      scales: { x: { time: !relative }, y: { range: (_, low, high) => [0, Math.max(high * 1.1, 1e-3)] } },
      axes: [relative ? { ...axis, values: (_, ticks) => ticks.map((at) => `${at} s`) } : axis, { ...axis, size: 56, values: (_, ticks) => ticks.map(unit) }],
      series: [{}, ...lines.map((line) => ({ stroke: color(line.color), width: 2, dash: line.dash, spanGaps: false, points: { show: false } }))],
    };
    const drawn = (plot.current = new uPlot(options, columns, element));
    const watch = new ResizeObserver(() => drawn.setSize({ width: element.clientWidth, height }));
    watch.observe(element);
    return () => { watch.disconnect(); drawn.destroy(); plot.current = null; };
  }, [scheme, lines.length]);
  useEffect(() => { if (plot.current) plot.current.setData(columns); }, [columns]);
  return html`<section class="panel"><h2>${title}</h2>
    <div class="chart" role="img" aria-label=${summary || title} ref=${place}></div>
    <ul class="keys">${lines.map((line) => html`<li><i class=${line.dash ? "dash" : ""} style=${{ color: `var(--${line.color})` }}></i>${line.name}</li>`)}</ul>
  </section>`;
}

export const Stat = ({ name, value, more }) => html`<div class="stat"><dt>${name}</dt><dd>${value}${more ? html` <small>${more}</small>` : null}</dd></div>`;
export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;
