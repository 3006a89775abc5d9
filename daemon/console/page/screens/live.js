// Live tail: messages as they come, with filters. While it pauses nothing is read; it goes on where it stopped.

import { html, useEffect, useState } from "../vendor/preact-htm.js";
import { clock, date, visible } from "../lib/format.js";
import { told } from "../lib/ladder.js";
import { listen } from "../lib/live.js";
import { refine } from "../lib/router.js";
import { useTail } from "../lib/tail.js";
import { MessageLink, Panel, Peer, Problem, Said, State, Table, useTitle, WorkLink } from "../lib/ui.js";

/** @typedef {import("../lib/api.js").Event} Event */

const KINDS = ["say", "capability", "receipt", "trace"];
const DIRECTIONS = { in: "to us", out: "from us", observed: "between others" };
const TYPING_MS = 300;

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
export function Live({ instance, route }) {
  const heading = useTitle("Live");
  const query = Object.fromEntries(route.query);
  const [paused, setPaused] = useState(false);
  const filters = useSettled({
    kind: query.kind ?? "",
    direction: query.direction ?? "",
    peer: query.peer ?? "",
    work: query.work ?? "",
    text: query.text ?? "",
  });
  const { rows, dropped, away, error } = useTail(instance, filters, paused);
  const waiting = useCount(instance, paused);
  const state = paused
    ? `paused; ${waiting === 0 ? "nothing came since" : `${waiting} came since, of all kinds`}`
    : away
      ? "the daemon is away; it goes on when it is back"
      : "live";
  const first = rows.findLast((one) => one.type === "envelope");
  return html`<h1 ref=${heading} tabindex="-1">Live</h1>
    <${Panel} title="Messages" aside=${html`<span role="status" class="muted">${state}</span>`}>
      <${Filters} route=${route} query=${query}>
        <button type="button" aria-pressed=${paused} onClick=${() => setPaused(!paused)}>${paused ? "Resume" : "Pause"}</button>
      <//>
      ${!away && html`<${Problem} error=${error} />`}
      <${Table} caption="Messages, newest first" columns=${["Time", "Message", "From", "To", "Text", "Work", "State"]}
        none="No message fits yet." rows=${rows.map(row)} />
      ${dropped > 0 && html`<p class="none">${dropped} older ones are not shown any more${first?.message ? `: those before ${date(first.message.received_ms)}` : ""}. Filters find them in the store.</p>`}
    <//>`;
}

/** @param {Event} event */
function row(event) {
  const message = event.message;
  if (!message) {
    return {
      key: `gap ${event.seq}`,
      kind: "asks",
      cells: ["", `gap: retention removed messages ${event.pruned_from} to ${event.seq}`, "", "", "", "", ""],
    };
  }
  const { what, text } = told(message);
  return {
    key: message.seq,
    cells: [
      html`<time datetime=${new Date(message.received_ms).toISOString()} title=${date(message.received_ms)}>${clock(message.received_ms)}</time>`,
      html`<${MessageLink} id=${message.id}>${visible(what)}<//>`,
      html`<${Peer} id=${message.sender} />`,
      message.to === null ? html`<span class="muted">everybody</span>` : html`<${Peer} id=${message.to} />`,
      text && html`<${Said} by=${message.sender}>${text}<//>`,
      message.work_id && html`<${WorkLink} id=${message.work_id} />`,
      message.delivery ? html`<${State} of=${message.delivery} />` : (message.outcome ?? ""),
    ],
  };
}

/** @param {{route: import("../lib/router.js").Route, query: Record<string, string>, children: any}} props */
function Filters({ route, query, children }) {
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) =>
    refine(route, { [name]: event.target.value });
  return html`<form class="filters" role="search" onSubmit=${(/** @type {SubmitEvent} */ event) => event.preventDefault()}>
    <label>Text<input type="search" value=${query.text ?? ""} onInput=${set("text")} placeholder="anywhere in it" maxlength="200" /></label>
    <label>Kind<select value=${query.kind ?? ""} onChange=${set("kind")}><option value="">all</option>${KINDS.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
    <label>Direction<select value=${query.direction ?? ""} onChange=${set("direction")}><option value="">all</option>${Object.entries(DIRECTIONS).map(([one, name]) => html`<option key=${one} value=${one}>${name}</option>`)}</select></label>
    <label>Peer<input type="search" value=${query.peer ?? ""} onInput=${set("peer")} placeholder="whole id" size="14" /></label>
    <label>Work<input type="search" value=${query.work ?? ""} onInput=${set("work")} placeholder="whole id" size="20" /></label>
    ${children}
  </form>`;
}

/**
 * A value once it has not changed for a moment, so that a stream does not begin anew with each letter.
 * @template {Record<string, string>} T
 * @param {T} value
 * @returns {T}
 */
function useSettled(value) {
  const [settled, setSettled] = useState(value);
  useEffect(() => {
    const timer = setTimeout(() => setSettled(value), TYPING_MS);
    return () => clearTimeout(timer);
  }, Object.values(value));
  return settled;
}

/** How many messages came since `counting` began. @param {string} instance @param {boolean} counting */
function useCount(instance, counting) {
  const [count, setCount] = useState(0);
  useEffect(() => {
    setCount(0);
    return counting ? listen(instance, (event) => event && setCount((before) => before + 1)) : undefined;
  }, [instance, counting]);
  return count;
}
