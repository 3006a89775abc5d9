// The inbox: what is dead and why, who leased what, and what waits. Purging is previewed first.

import { html, useContext, useState } from "../vendor/preact-htm.js";
import { age, visible } from "../lib/format.js";
import { told } from "../lib/ladder.js";
import { useLive } from "../lib/live.js";
import { refine, to } from "../lib/router.js";
import { call, withQuery } from "../lib/session.js";
import {
  Action,
  Ago,
  Instance,
  MessageLink,
  Panel,
  Peer,
  Problem,
  Said,
  State,
  Table,
  Unseen,
  useNow,
  useTitle,
  WorkLink,
} from "../lib/ui.js";

const PAGE = 100;
const STATES = ["dead", "leased", "ready", "acked"];
const NONE = {
  dead: "Nothing is dead.",
  leased: "Nobody has leased a message.",
  ready: "Nothing waits.",
  acked: "No message that was handled is kept.",
};
const TITLES = { dead: "Dead", leased: "Leased", ready: "Ready", acked: "Acknowledged" };

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
export function Inbox({ instance, route }) {
  const heading = useTitle("Inbox");
  const wanted = route.query.get("state") ?? "";
  const states = STATES.includes(wanted) ? [wanted] : ["dead", "leased", "ready"];
  const [pages, setPages] = useState(1);
  const load = async () => {
    const sessions = (await call(instance, "GET", "/v1/mcp/sessions")).sessions;
    const found = await Promise.all(
      states.map(async (state) => {
        const items = [];
        let since = null;
        let answer = null;
        for (let page = 0; page < pages; page++) {
          answer = await call(instance, "GET", withQuery("/v1/inbox", { state, since, limit: PAGE }));
          items.push(...answer.items);
          since = answer.next_since;
          if (since === null) break;
        }
        return { state, items, more: since !== null, counts: answer.counts, others: answer.others };
      }),
    );
    return { sessions, found };
  };
  const { data, error, reload } = useLive(instance, load, [wanted, pages]);
  const { counts, others } = data?.found[0] ?? { counts: {}, others: 0 };
  return html`<h1 ref=${heading} tabindex="-1">Inbox</h1>
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>State<select value=${wanted} onChange=${(/** @type {any} */ event) => refine(route, { state: event.target.value })}>
        <option value="">dead, leased and ready</option>${STATES.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
    </form>
    <${Problem} error=${error} />
    ${others > 0 && html`<p class="notice">${others} unread message${others === 1 ? " is" : "s are"} from peers that are no contacts: <a href=${to(instance, "needs")}>admit or refuse them</a>.</p>`}
    ${data === null && error === null && html`<p class="none">Loading …</p>`}
    ${data?.found.map(
      ({
        state,
        items,
        more,
      }) => html`<${Panel} key=${state} title=${/** @type {any} */ (TITLES)[state]} aside=${html`<span class="muted">${counts[state] ?? ""}</span>`}>
      <${Items} state=${state} items=${items} sessions=${data.sessions} reload=${reload} />
      ${more && html`<button type="button" onClick=${() => setPages(pages + 1)}>Show more<${Unseen}> that are ${state}<//></button>`}
    <//>`,
    )}
    <${Purge} instance=${instance} sender=${route.query.get("from") ?? ""} done=${reload} />`;
}

/** @param {{state: string, items: any[], sessions: any[], reload: () => void}} props */
function Items({ state, items, sessions, reload }) {
  const instance = useContext(Instance);
  if (state === "dead") return html`<${DeadItems} items=${items} reload=${reload} />`;
  return html`<${Table} caption=${`Messages that are ${state}, oldest first`} columns=${["Message", "From", "Work", "Received", state === "leased" ? "Held" : "Attempts", ...(state === "ready" ? [] : ["Actions"])]} none=${/** @type {any} */ (NONE)[state]}
    rows=${items.map((item) => {
      const { what, text } = told(item.message);
      return {
        key: item.seq,
        href: to(instance, "messages", item.message.id),
        cells: [
          html`<${MessageLink} id=${item.message.id}>${visible(what)}<//> <${Said} by=${item.message.sender}>${text.slice(0, 200)}<//>`,
          html`<${Peer} id=${item.message.sender} />${item.lane === "other" && html` <span class="muted">no contact</span>`}`,
          item.message.work_id &&
            html`<${WorkLink} id=${item.message.work_id} /> ${item.work_state && html`<${State} of=${item.work_state} />`}`,
          html`<${Ago} ms=${item.message.received_ms} />`,
          state === "leased"
            ? html`<${Holder} item=${item} sessions=${sessions} /><br /><span class="muted">${item.leased_ms ? html`since <${Ago} ms=${item.leased_ms} />, ` : ""}${item.renewed_ms ? html`renewed <${Ago} ms=${item.renewed_ms} />, ` : ""}ends <${Until} ms=${item.lease_until_ms} /></span>`
            : html`<${Attempts} item=${item} />`,
          ...(state === "ready" ? [] : [html`<${InboxActions} item=${item} done=${reload} />`]),
        ],
      };
    })} />`;
}

/** Who leased a message, as its token says. @param {{item: any, sessions: any[]}} props */
function Holder({ item, sessions }) {
  const session = sessions.find((one) => one.id === item.leased_by);
  if (session)
    return html`<bdi>${visible(`${session.host} ${session.host_version}`)}</bdi> <span class="muted">process ${session.host_pid}</span>`;
  const worker = /^worker\.(\d+)$/.exec(item.leased_by ?? "");
  if (worker) return `worker, process ${worker[1]}`;
  if (item.leased_by === "inbox.next") return "a call of inbox next";
  return html`<code title="the token of the lease">${visible(item.leased_by ?? item.lease)}</code>`;
}

/** @param {{ms: number}} props */
function Until({ ms }) {
  const now = useNow(1);
  return html`<time datetime=${new Date(ms).toISOString()} title="a holder that lives renews it">in ${age(ms - now)}</time>`;
}

/** @param {{item: any}} props */
function Attempts({ item }) {
  const now = useNow();
  return html`${item.attempts}${item.available_ms > now && html` <span class="muted">again in ${age(item.available_ms - now)}</span>`}${item.last_error && html` <${Said}>${item.last_error}<//>`}`;
}

/**
 * Messages that were given up, each with why and what can be done.
 * @param {{items: any[], reload: () => void}} props
 */
export function DeadItems({ items, reload }) {
  const instance = useContext(Instance);
  if (items.length === 0) return html`<p class="none">${NONE.dead}</p>`;
  return html`<ul class="items">${items.map((item) => {
    const { what, text } = told(item.message);
    return html`<li key=${item.seq} data-href=${to(instance, "messages", item.message.id)}>
      <div class="head"><${MessageLink} id=${item.message.id}>${visible(what)}<//> <span class="muted">from</span> <${Peer} id=${item.message.sender} /> <${Ago} ms=${item.message.received_ms} />
        ${item.message.work_id && html`<${WorkLink} id=${item.message.work_id} />`} ${item.work_state && html`<${State} of=${item.work_state} />`} <span class="muted">${item.attempts} attempt${item.attempts === 1 ? "" : "s"}</span></div>
      ${item.last_error && html`<p><span class="state dead">✕</span> <${Said} by="who returned it">${item.last_error}<//></p>`}
      ${text && html`<${Said} block by=${item.message.sender}>${text.slice(0, 300)}<//>`}
      <${InboxActions} item=${item} done=${reload} />
    </li>`;
  })}</ul>`;
}

/**
 * What can be done with a message in the inbox, by its state.
 * @param {{item: any, done: () => void}} props
 */
export function InboxActions({ item, done }) {
  const act = (/** @type {string} */ label, /** @type {string} */ verb, confirm = "") =>
    html`<${Action} label=${label} about=${`message ${item.seq}`} confirm=${confirm} danger=${confirm !== ""} done=${done} action=${{
      method: "POST",
      path: `/v1/inbox/${item.seq}/${verb}`,
      body: {},
      ctl: ["inbox", verb, String(item.seq)],
      python: `client.${verb}(${item.seq})`,
    }} />`;
  return html`<div class="actions">
    ${["dead", "acked"].includes(item.state) && act("Requeue", "requeue")}
    ${item.state === "leased" && act("Return", "nack", "Take it from its holder? It becomes ready again.")}
    ${item.state !== "acked" && act("Remove", "ack", "Acknowledge it, so that it leaves the inbox?")}
  </div>`;
}

/** @param {{instance: string, sender: string, done: () => void}} props */
function Purge({ instance, sender, done }) {
  const [from, setFrom] = useState(sender);
  const [others, setOthers] = useState(false);
  const [preview, setPreview] = useState(/** @type {any} */ (null));
  const whom = others ? "all peers that are no contacts" : from.trim();
  const body = others ? { others: true } : { sender: from.trim() };
  const options = others ? ["--others"] : ["--from", from.trim() || "PEER"];
  const choose = (/** @type {() => void} */ set) => {
    set();
    setPreview(null);
  };
  const python = (/** @type {boolean} */ dry) =>
    `client.purge_inbox(${others ? "others=True" : `sender=${JSON.stringify(from.trim())}`}${dry ? ", dry_run=True" : ""})`;
  return html`<${Panel} title="Purge">
    <p class="muted">Makes the unread messages of a sender dead, and closes the works that they opened.</p>
    <form class="filters" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>Sender<input value=${from} disabled=${others} placeholder="peer id, handle or key id" size="32" onInput=${(/** @type {any} */ event) => choose(() => setFrom(event.target.value))} /></label>
      <label class="tick"><input type="checkbox" checked=${others} onChange=${(/** @type {any} */ event) => choose(() => setOthers(event.target.checked))} /> all peers that are no contacts</label>
    </form>
    <div class="actions">
      <${Action} label="Preview" disabled=${whom === ""} done=${setPreview} action=${{ method: "POST", path: "/v1/inbox/purge", body: { ...body, dry_run: true }, ctl: ["inbox", "purge", ...options, "--dry-run"], python: python(true) }} />
      ${preview !== null && html`<${Action} label="Purge" danger disabled=${preview.messages + preview.works === 0} done=${() => choose(done)} action=${{ method: "POST", path: "/v1/inbox/purge", body, ctl: ["inbox", "purge", ...options], python: python(false) }} />`}
    </div>
    ${
      preview !== null &&
      html`<p class="notice" role="status">Of <bdi>${visible(whom)}</bdi>: ${preview.messages} unread message${preview.messages === 1 ? "" : "s"} would be dead, ${preview.works} work${preview.works === 1 ? "" : "s"} closed.${" "}
      ${!others && html`<a href=${to(instance, "peers", whom)}>its messages and works</a>`}</p>`
    }
  <//>`;
}
