// The parts that all screens are made of. Text of peers goes through Said or Peer, always as text nodes.

import { createContext, html, useContext, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { now } from "./clock.js";
import { age, date, shell, shortId, visible } from "./format.js";
import { to } from "./router.js";
import { ApiError, call, session } from "./session.js";

/** @typedef {import("./session.js").ApiError} Failure */

/** The instance whose screen this is. */
export const Instance = createContext("");

/** Says something to screen readers and at the foot of the page. */
export const Announce = createContext(/** @type {(text: string) => void} */ (() => {}));

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
 * An error of the API.
 * @param {{error: Failure | null}} props
 */
export function Problem({ error }) {
  if (error === null) return null;
  return html`<p class="notice problem" role="alert">${visible(error.message)}${error.hint && html`<br /><small>${visible(error.hint)}</small>`}</p>`;
}

/**
 * A table with a caption that screen readers hear. The roles are explicit, because narrow screens show rows as boxes, which
 * would otherwise be no table any more. `columns` are names, `rows` are arrays of cells with a key.
 * @param {{caption: string, columns: string[], rows: {key: string | number, cells: any[], href?: string, kind?: string}[], none: string}} props
 */
export function Table({ caption, columns, rows, none }) {
  if (rows.length === 0) return html`<p class="none">${none}</p>`;
  return html`<div class="scroll" tabindex="0" role="region" aria-label=${caption}>
    <table role="table">
      <caption class="unseen">${caption}</caption>
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
 * @param {{text: string, label?: string}} props
 */
export function Copy({ text, label = "Copy" }) {
  const announce = useContext(Announce);
  const copy = async () => {
    await navigator.clipboard.writeText(text);
    announce("copied");
  };
  return html`<button type="button" class="small" onClick=${copy}>${label}</button>`;
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
 * @param {{action: ActionOf}} props
 */
export function Lines({ action }) {
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
    <summary>as a command</summary>
    <dl>${lines.map(([name, line]) => html`<div key=${name}><dt>${name}</dt><dd><code>${visible(line)}</code><${Copy} text=${line} /></dd></div>`)}</dl>
  </details>`;
}

/**
 * A button for one operation of the API. In a console that only reads, the lines alone.
 * @param {{label: string, action: ActionOf, danger?: boolean, confirm?: string, disabled?: boolean, done?: (answer: any) => void}} props
 */
export function Action({ label, action, danger = false, confirm = "", disabled = false, done }) {
  const instance = useContext(Instance);
  const announce = useContext(Announce);
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState(/** @type {Failure | null} */ (null));
  const act = async () => {
    if (confirm !== "" && !window.confirm(confirm)) return;
    setBusy(true);
    setError(null);
    try {
      const answer = await call(instance, action.method, action.path, action.body);
      announce(`${label}: done`);
      done?.(answer);
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      setError(problem);
    } finally {
      setBusy(false);
    }
  };
  const may = session()?.write ?? false;
  const title = may ? "" : "this console only reads: aghctl console --write";
  return html`<div class="action">
    <button type="button" class=${danger ? "danger" : ""} disabled=${!may || busy || disabled} title=${title} onClick=${act}>${label}</button>
    <${Lines} action=${action} />
    <${Problem} error=${error} />
  </div>`;
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

/** Moves the focus to the heading of a screen when it is shown, as a page load would. @param {string} title */
export function useTitle(title) {
  const ref = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    document.title = `${title} · aghbus console`;
    ref.current?.focus();
  }, [title]);
  return ref;
}
