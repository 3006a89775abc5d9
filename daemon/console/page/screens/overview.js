// Overview: how the daemons are, what asks for somebody, and the works as a live table.

import { html, useEffect, useMemo, useRef } from "../vendor/preact-htm.js";
import Plot from "../vendor/uplot.js";
import { statusOf } from "../lib/clock.js";
import { age, size, visible } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { refine, to } from "../lib/router.js";
import { call, request, withQuery } from "../lib/session.js";
import { Ago, Facts, Panel, Peer, Problem, Said, State, Table, useChanges, useTitle, WorkLink } from "../lib/ui.js";

const PAGE = 50; // rows: more take a browser longer than the daemon
const STATES = ["needs_input", "working", "submitted", "completed", "failed", "canceled"];
const SAMPLES = 120;
const CLOCK_MS = 5000; // of difference: less comes from the way

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
export function Overview({ instance, route }) {
  const heading = useTitle("Overview");
  const none = () => false;
  const { data, error } = useLive(instance, () => statusOf(instance), [], none);
  const all = useLive(instance, statuses, [], none); // those that run are known when this one does not
  const waits = [all, { data, error }].some((one) => one.data === null && one.error === null);
  // the works wait for what stands above them: nothing moves once it is seen
  return html`<h1 ref=${heading} tabindex="-1" class="unseen">Overview</h1>
    ${all.data !== null && html`<${Instances} instance=${instance} of=${all.data} />`}
    ${!waits && html`<${Daemon} instance=${instance} data=${data} error=${error} />`}
    <div hidden=${waits}><${Works} instance=${instance} route=${route} /></div>`;
}

/** All instances of this user, with their states. */
async function statuses() {
  const { instances } = await (await request("/instances")).json();
  return Promise.all(
    instances.map(async (/** @type {any} */ one) => ({
      ...one,
      status: one.running ? await statusOf(one.name).catch(() => null) : null,
    })),
  );
}

/** @param {{instance: string, of: any[]}} props */
function Instances({ instance, of }) {
  if (of.length < 2) return null;
  return html`<div class="cards" role="group" aria-label="Instances of this user">${of.map(
    (
      /** @type {any} */ one,
    ) => html`<a key=${one.name} class=${`card ${one.name === instance ? "here" : ""}`} href=${to(one.name, "overview")}>
    <strong>${one.name}</strong>
    ${one.status === null ? html`<span class="muted">stopped</span>` : html`<span class="muted">${one.status.peer_id === one.name ? "" : `${visible(one.status.peer_id)} · `}${one.status.ready ? "ready" : "not ready"} · ${total(one.status.works)} open · ${one.status.inbox.ready ?? 0} in the inbox</span>`}
  </a>`,
  )}</div>`;
}

/** @param {Record<string, number>} counts */
function total(counts) {
  return Object.values(counts).reduce((sum, one) => sum + one, 0);
}

/** @param {{instance: string, data: any, error: any}} props */
function Daemon({ instance, data, error }) {
  const rates = useRef(/** @type {{at: number, counters: Record<string, number>}[]} */ ([]));
  if (data !== null && rates.current.at(-1)?.counters !== data.counters) {
    rates.current = [...rates.current.slice(-SAMPLES), { at: Date.now() / 1000, counters: data.counters }];
  }
  if (data === null) return html`<${Problem} error=${error} />`;
  return html`<${Panel} title=${data.name} aside=${html`<span class="muted">version ${data.version}, up ${age(1000 * data.uptime_s)}</span>`}>
    <${Problem} error=${error} />
    ${data.problems.map((/** @type {string} */ one) => html`<p key=${one} class="notice problem">${visible(typeof one === "string" ? one : JSON.stringify(one))}</p>`)}
    <${Facts} of=${[
      ["peer", html`<${Peer} id=${data.peer_id} />`],
      ["broker", `${data.broker.state}${data.broker.server ? `, ${visible(data.broker.server)}` : ""}`],
      [
        "store",
        `${data.store.writable === false ? "not writable, " : ""}${size(data.store.bytes ?? data.store.size ?? 0)}`,
      ],
      ["works", counts(data.works)],
      [
        "inbox",
        `${counts(data.inbox)} · ${share(data.inbox_use.messages, data.inbox_use.capacity)} of its room in use`,
      ],
      ["outbox", counts(data.outbox)],
      ["peers", counts(data.peers)],
      ["clock", clock(data.ahead_ms)],
      ["limits", data.limits.map((/** @type {string} */ one) => visible(one)).join(", ") || "none reached"],
      ["quarantined", data.quarantined || ""],
      ["requests", data.requests ? html`<a href=${to(instance, "needs")}>${data.requests}</a>` : ""],
    ]} />
    <${Rates} samples=${rates.current} />
  <//>`;
}

/** @param {Record<string, number>} of */
function counts(of) {
  const shown = Object.entries(of)
    .filter(([, count]) => count > 0)
    .map(([name, count]) => `${count} ${name.replaceAll("_", " ")}`);
  return shown.join(", ") || "none";
}

/** @param {number} part @param {number} whole */
function share(part, whole) {
  return `${whole ? Math.ceil((100 * part) / whole) : 0} %`;
}

/** The daemon's clock beside that of the browser. @param {number} ahead milliseconds */
function clock(ahead) {
  if (Math.abs(ahead) < CLOCK_MS) return "as this browser's";
  return `${age(Math.abs(ahead))} ${ahead > 0 ? "ahead of" : "behind"} this browser's; ages are by the daemon's`;
}

/** Messages a second, as the counters grew between two looks. @param {{samples: {at: number, counters: Record<string, number>}[]}} props */
function Rates({ samples }) {
  const place = useRef(/** @type {HTMLElement | null} */ (null));
  const plot = useRef(/** @type {Plot | null} */ (null));
  const data = useMemo(() => {
    const rate = (/** @type {RegExp} */ names, /** @type {number} */ at) => {
      const sum = (/** @type {any} */ one) =>
        Object.entries(one.counters)
          .filter(([name]) => names.test(name))
          .reduce((all, [, count]) => all + Number(count), 0);
      return Math.max(0, (sum(samples[at]) - sum(samples[at - 1])) / (samples[at].at - samples[at - 1].at));
    };
    const places = samples.map((_, at) => at).slice(1);
    return [
      places.map((at) => samples[at].at),
      places.map((at) => rate(RECEIVED, at)),
      places.map((at) => rate(SENT, at)),
    ];
  }, [samples]);
  useEffect(() => {
    const target = /** @type {HTMLElement} */ (place.current);
    const style = getComputedStyle(document.documentElement);
    const color = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const axis = { stroke: color("--muted"), grid: { stroke: color("--line"), width: 1 }, ticks: { show: false } };
    plot.current = new Plot(
      {
        width: target.clientWidth,
        height: 80,
        legend: { show: false },
        cursor: { show: false },
        axes: [axis, { ...axis, size: 46 }],
        scales: {
          y: {
            range: (/** @type {any} */ _, /** @type {number} */ __, /** @type {number} */ most) => [
              0,
              Math.max(1, most),
            ],
          },
        },
        series: [
          {},
          { label: "received", stroke: color("--said"), width: 2 },
          { label: "sent", stroke: color("--accent"), width: 2 },
        ],
      },
      data,
      target,
    );
    const observer = new ResizeObserver(() => plot.current?.setSize({ width: target.clientWidth, height: 80 }));
    observer.observe(target);
    return () => {
      observer.disconnect();
      plot.current?.destroy();
    };
  }, []);
  useEffect(() => plot.current?.setData(data), [data]);
  const last = (/** @type {number} */ series) => (data[series].at(-1) ?? 0).toFixed(1);
  return html`<figure class="rates"><figcaption class="muted"><span class="key in">received ${last(1)}/s</span> <span class="key out">sent ${last(2)}/s</span></figcaption>
    <div class="curve" ref=${place} aria-hidden="true"></div></figure>`;
}

const RECEIVED = /^received$/;
const SENT = /^sent\./;

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
function Works({ instance, route }) {
  const query = Object.fromEntries(route.query);
  const load = async () => {
    const filters = { role: query.role, peer: query.peer, text: query.text, limit: PAGE };
    const list = (/** @type {object} */ more) => call(instance, "GET", withQuery("/v1/works", { ...filters, ...more }));
    const [asking, others] = await Promise.all([
      query.state || query.before ? { works: [] } : list({ state: "needs_input" }),
      list({ state: query.state || STATES.slice(1), before: query.before }),
    ]);
    return { works: [...asking.works, ...others.works], before: others.next_before };
  };
  const { data, error } = useLive(instance, load, [route.query.toString()], (event) => event.work !== null);
  const works = (data?.works ?? []).filter(
    (/** @type {any} */ one) => !query.capability || one.capability?.includes(query.capability),
  );
  useChanges(data === null ? null : works);
  return html`<${Panel} title="Works" aside=${html`<a href=${to(instance, "open")}>Open a work</a>`}>
    <${Filters} route=${route} query=${query} />
    <${Problem} error=${error} />
    <${Table} caption="Works, those that need input first" columns=${["State", "Text", "From", "To", "Changed", "Id"]} none=${data === null ? "Loading …" : "No work fits. Open one, or change the filters."}
      rows=${works.map((/** @type {any} */ one) => ({
        key: one.work_id,
        href: to(instance, "works", one.work_id),
        kind: one.state === "needs_input" ? "asks" : one.state === "failed" ? "failed" : "",
        cells: [
          html`<${State} of=${one.state} />`,
          html`<${WorkLink} id=${one.work_id}><${Said} by=${one.initiator}>${one.text || "(no text)"}<//><//>${one.state === "needs_input" && one.message ? html`<br /><${Said} by=${one.target}>${one.message}<//>` : null}`,
          html`<${Peer} id=${one.initiator} />`,
          html`<${Peer} id=${one.target} />`,
          html`<${Ago} ms=${one.updated_ms} />`,
          html`<${WorkLink} id=${one.work_id} />`,
        ],
      }))} />
    <p class="pages">
      ${query.before && html`<a href=${to(instance, "overview", "", { ...query, before: "" })}>Newest works</a>`}
      ${data?.before != null && html`<a href=${to(instance, "overview", "", { ...query, before: String(data.before) })}>Older works</a>`}
    </p>
  <//>`;
}

/** @param {{route: import("../lib/router.js").Route, query: Record<string, string>}} props */
function Filters({ route, query }) {
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) =>
    refine(route, { [name]: event.target.value, before: "" });
  return html`<form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
    <label>Text<input type="search" value=${query.text ?? ""} onInput=${set("text")} placeholder="part of the text" maxlength="200" /></label>
    <label>State<select value=${query.state ?? ""} onChange=${set("state")}><option value="">all</option>${STATES.map((one) => html`<option key=${one} value=${one}>${one.replaceAll("_", " ")}</option>`)}</select></label>
    <label>Whose<select value=${query.role ?? ""} onChange=${set("role")}><option value="">all</option><option value="initiator">ours, for others</option><option value="target">for us</option><option value="observer">of others</option></select></label>
    <label>Peer<input type="search" value=${query.peer ?? ""} onInput=${set("peer")} placeholder="whole id" size="14" /></label>
    <label>Capability<input type="search" value=${query.capability ?? ""} onInput=${set("capability")} placeholder="such as test.run" size="14" /></label>
  </form>`;
}
