// The parts that all screens are made of. Text of peers goes through Said or Peer, always as text nodes.

import { createContext, html, useContext, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { now } from "./clock.js";
import { age, date, shell, shortId, visible } from "./format.js";
import { to } from "./router.js";
import { ApiError, call, session } from "./session.js";

/** @typedef {import("./session.js").ApiError} Failure */

const TITLE = 60; // characters of a text that a title or an announcement has
const MOST_SAID = 3; // works that are named when they move at the same time

/** The instance whose screen this is. */
export const Instance = createContext("");

/** Says something to screen readers and at the foot of the page: a text, or parts with those of peers in Said. */
export const Announce = createContext(/** @type {(said: any) => void} */ (() => {}));

/** The rest of a name for those who do not see where it stands. @param {{children: any}} props */
export function Unseen({ children }) {
  return html`<span class="unseen">${children}</span>`;
}

/**
 * Text of a peer: marked as theirs, isolated from ours in direction, without characters that act.
 * @param {{children: string | null | undefined, block?: boolean, by?: string}} props
 */
export function Said({ children, block = false, by = "a peer" }) {
  const text = visible(String(children ?? ""));
  const title = `text of ${by}, not of the console`;
  return block
    ? html`<blockquote class="said" dir="auto" title=${title}>${text}</blockquote>`
    : html`<bdi class="said" title=${title}>${text}</bdi>`;
}

/**
 * A link to a peer.
 * @param {{id: string}} props
 */
export function Peer({ id }) {
  const instance = useContext(Instance);
  const [nickname, key = ""] = id.split(/@(?=[0-9a-f]{32}$)/); // where a handle may break
  const parts = key === "" ? visible(id) : html`${visible(nickname)}@<wbr />${key.slice(0, 16)}<wbr />${key.slice(16)}`;
  return html`<a class="peer" href=${to(instance, "peers", id)} title=${visible(id)}><bdi>${parts}</bdi></a>`;
}

/**
 * A link to a work.
 * @param {{id: string, children?: any}} props
 */
export function WorkLink({ id, children }) {
  const instance = useContext(Instance);
  return html`<a href=${to(instance, "works", id)} title=${visible(id)}>${children ?? html`<code>${visible(shortId(id))}</code>`}</a>`;
}

/**
 * A link to a message.
 * @param {{id: string, children?: any}} props
 */
export function MessageLink({ id, children }) {
  const instance = useContext(Instance);
  return html`<a href=${to(instance, "messages", id)} title=${visible(id)}>${children ?? html`<code>${visible(shortId(id))}</code>`}</a>`;
}

const SIGNS = {
  submitted: "○",
  working: "◐",
  needs_input: "?",
  completed: "✓",
  failed: "✕",
  rejected: "✕",
  canceled: "–",
  running: "◐",
  waiting: "?",
  ready: "○",
  leased: "◐",
  dead: "✕",
  active: "●",
  stale: "◌",
  expired: "–",
  verified: "✓",
  unverified: "?",
  local: "●",
  inactive: "◌",
  queued: "○",
  published: "◐",
  acked: "✓",
  undelivered: "✕",
};

/** The sign of a state. @param {string} state */
export function sign(state) {
  return /** @type {Record<string, string>} */ (SIGNS)[state] ?? "·";
}

/**
 * A state as a word with a sign, so that colour is not all that tells it.
 * @param {{of: string}} props
 */
export function State({ of }) {
  return html`<span class="state ${of.replaceAll("_", "-")}"><span aria-hidden="true">${sign(of)}</span>${" "}${of.replaceAll("_", " ")}</span>`;
}

/** The daemon's time, which follows every `seconds`. @param {number} seconds */
export function useNow(seconds = 5) {
  const [shown, setShown] = useState(now);
  useEffect(() => {
    const timer = setInterval(() => document.hidden || setShown(now()), 1000 * seconds);
    return () => clearInterval(timer);
  }, [seconds]);
  return shown;
}

/**
 * How long ago something was, with the time itself as a title.
 * @param {{ms: number}} props
 */
export function Ago({ ms }) {
  const at = useNow();
  return html`<time datetime=${new Date(ms).toISOString()} title=${date(ms)}>${age(at - ms)} ago</time>`;
}

/**
 * An error of the API. That the daemon is away is said once, by the header.
 * @param {{error: Failure | null}} props
 */
export function Problem({ error }) {
  if (error === null) return null;
  return html`<p class="notice problem" role=${error.status === 0 ? undefined : "alert"}>${visible(error.message)}${error.hint && html`<br /><small>${visible(error.hint)}</small>`}</p>`;
}

/**
 * What a screen shows before its data.
 * @param {{error: Failure | null}} props
 */
export function Pending({ error }) {
  return error === null ? html`<p class="none">Loading …</p>` : html`<${Problem} error=${error} />`;
}

/**
 * A table with a name that screen readers hear. The roles are explicit, because narrow screens show rows as boxes, which
 * would otherwise be no table any more. `columns` are names, `rows` are arrays of cells with a key.
 * @param {{caption: string, columns: string[], rows: {key: string | number, cells: any[], href?: string, kind?: string}[], none: string}} props
 */
export function Table({ caption, columns, rows, none }) {
  if (rows.length === 0) return html`<p class="none">${none}</p>`;
  return html`<div class="scroll" tabindex="0" role="group" aria-label=${caption}>
    <table role="table" aria-label=${caption}>
      <thead role="rowgroup"><tr role="row">${columns.map((name) => html`<th scope="col" role="columnheader" key=${name}>${name}</th>`)}</tr></thead>
      <tbody role="rowgroup">
        ${rows.map(
          (row) => html`<tr role="row" key=${row.key} class=${row.kind ?? ""} data-href=${row.href}>
          ${row.cells.map((cell, at) => html`<td role="cell" key=${at} data-label=${columns[at]}>${cell}</td>`)}
        </tr>`,
        )}
      </tbody>
    </table>
  </div>`;
}

/**
 * A button that copies a text.
 * @param {{text: string, label?: string, about?: string}} props `about` ends its name, unseen
 */
export function Copy({ text, label = "Copy", about = "" }) {
  const announce = useContext(Announce);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    announce("copied");
  };
  return html`<button type="button" class="small" onClick=${copy}>${label}<${Unseen}>${about}<//></button>`;
}

/**
 * @typedef {object} ActionOf one operation of the API, and how else it is done
 * @property {string} method
 * @property {string} path
 * @property {Record<string, unknown>} body
 * @property {string[]} ctl words after `aghctl --name INSTANCE`
 * @property {string} python a call of `client`
 */

/**
 * The same operation as lines to copy.
 * @param {{action: ActionOf, label: string}} props `label` is the name of the operation
 */
export function Lines({ action, label }) {
  const instance = useContext(Instance);
  const body = JSON.stringify(action.body);
  const lines = [
    ["aghctl", ["aghctl", "--name", instance, ...action.ctl].map(shell).join(" ")],
    [
      "curl",
      `curl --unix-socket "$XDG_RUNTIME_DIR/aghbus/${instance}.sock" -X ${action.method} http://localhost${shell(action.path)} -H 'content-type: application/json' -d ${shell(body)}`,
    ],
    ["Python", action.python],
  ];
  return html`<details class="lines">
    <summary>as a command<${Unseen}> to ${label}<//></summary>
    <dl>${lines.map(([name, line]) => html`<div key=${name}><dt>${name}</dt><dd><code>${visible(line)}</code><${Copy} text=${line} about=${` for ${name}: ${label}`} /></dd></div>`)}</dl>
  </details>`;
}

/**
 * A button for one operation of the API. In a console that only reads, the lines alone. `about` ends its name for those who do
 * not see in which row it stands. It can have the focus when it cannot act, too: else the keyboard would be nowhere after a press.
 * @param {{label: string, about?: string, action: ActionOf, danger?: boolean, confirm?: string, disabled?: boolean, done?: (answer: any) => void}} props
 */
export function Action({ label, about = "", action, danger = false, confirm = "", disabled = false, done }) {
  const instance = useContext(Instance);
  const announce = useContext(Announce);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {Failure | null} */ (null));
  const button = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => () => moveOn(/** @type {HTMLElement} */ (button.current)), []);
  const may = session()?.write ?? false;
  const off = !may || busy || disabled;
  const name = about ? `${label} ${about}` : label;
  const act = async () => {
    if (off) return;
    if (confirm !== "" && !window.confirm(confirm)) return;
    setBusy(true);
    setError(null);
    try {
      const answer = await call(instance, action.method, action.path, action.body);
      announce(`${name}: done`);
      done?.(answer);
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      setError(problem);
    } finally {
      setBusy(false);
    }
  };
  const title = may ? "" : "this console only reads: aghctl console --write";
  return html`<div class="action">
    <button type="button" ref=${button} class=${danger ? "danger" : ""} aria-disabled=${off ? "true" : undefined} title=${title} onClick=${act}>${label}${about && html`<${Unseen}> ${about}<//>`}</button>
    <${Lines} action=${action} label=${name} />
    <${Problem} error=${error} />
  </div>`;
}

/**
 * Where the keyboard goes on when what has the focus is about to leave the page: its row, the next one, else the heading.
 * @param {HTMLElement} from
 */
function moveOn(from) {
  if (document.activeElement !== from) return;
  const row = from.closest("[data-href]");
  const places = [row, row?.nextElementSibling, row?.previousElementSibling];
  setTimeout(() => {
    const place = places.find((one) => one?.isConnected) ?? document.querySelector("main h1");
    if (document.activeElement !== document.body || !(place instanceof HTMLElement)) return;
    place.tabIndex = -1;
    place.focus();
  });
}

/**
 * A box of a screen with a heading.
 * @param {{title: any, children?: any, aside?: any, kind?: string}} props
 */
export function Panel({ title, children, aside, kind = "" }) {
  return html`<section class="panel ${kind}"><header><h2>${title}</h2>${aside}</header>${children}</section>`;
}

/**
 * Names and values.
 * @param {{of: [string, any][]}} props
 */
export function Facts({ of }) {
  return html`<dl class="facts">${of.filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}

/**
 * JSON of a peer, indented, as text.
 * @param {{of: unknown}} props
 */
export function Json({ of }) {
  return html`<pre class="said" tabindex="0">${visible(JSON.stringify(of, null, 2))}</pre>`;
}

/**
 * Names the screen in the title of the page, and moves the focus to its heading once, as a page load would.
 * @param {string} title
 * @param {{of?: string, ready?: boolean}} [shown] what the screen shows; whether it was loaded, so that the heading says it
 */
export function useTitle(title, { of = "", ready = true } = {}) {
  const instance = useContext(Instance);
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    document.title = [of, title, instance, "aghbus console"].filter(Boolean).join(" · ");
  }, [of, title, instance]);
  useEffect(() => {
    if (ready) ref.current?.focus();
  }, [ready]);
  return ref;
}

/** A text of a peer in the title of the page: in quotes, and not all of it. @param {string} text */
export function quoted(text) {
  return `“${visible(text.slice(0, TITLE))}${text.length > TITLE ? "…" : ""}”`;
}

/**
 * Says which works have moved since they were loaded before.
 * @param {import("./api.js").Work[] | null} works
 * @param {{reports?: boolean}} [also] whether new reports are said, too
 */
export function useChanges(works, { reports = false } = {}) {
  const announce = useContext(Announce);
  const seen = useRef(/** @type {{latest: number, of: Map<string, any>} | null} */ (null));
  useEffect(() => {
    if (works === null) return;
    const before = seen.current;
    const was = (/** @type {any} */ one) => before?.of.get(one.work_id);
    const reported = (/** @type {any} */ one) => reports && one.message && one.message !== was(one)?.message;
    const moved = works.filter(
      (one) => before && one.updated_ms >= before.latest && (was(one)?.state !== one.state || reported(one)),
    );
    seen.current = {
      latest: Math.max(before?.latest ?? 0, ...works.map((one) => one.updated_ms)),
      of: new Map(works.map((one) => [one.work_id, one])),
    };
    const said = (/** @type {any} */ one) => visible((reported(one) ? one.message : one.text).slice(0, TITLE));
    if (moved.length > MOST_SAID) announce(`${moved.length} works changed`);
    else if (moved.length > 0)
      announce(moved.map((one) => html`${one.state.replaceAll("_", " ")}: <bdi class="said">${said(one)}</bdi>${" "}`));
  }, [works]);
}
