// A question to the peers on the wire, and what their cards say.

import { html, useState } from "../vendor/preact-htm.js";
import { visible } from "../lib/format.js";
import { to } from "../lib/router.js";
import { ApiError, call } from "../lib/session.js";
import { Lines, Panel, Peer, Problem, Said, State, Table } from "../lib/ui.js";

/** The capabilities that a card names. @param {any} card @returns {string[]} */
export function capabilities(card) {
  return Array.isArray(card.capabilities)
    ? card.capabilities.filter((/** @type {unknown} */ one) => typeof one === "string")
    : [];
}

/** @param {{of: string[]}} props */
export function Names({ of }) {
  return html`<span class="names">${of.map((name, at) => html`<${Said} key=${at}>${name}<//>${" "}`)}</span>`;
}

/** Ask now. It only reads, so that it works in a console that may not act. @param {{instance: string, only?: string}} props */
export function Whois({ instance, only = "" }) {
  const [query, setQuery] = useState("");
  const [state, setState] = useState(
    /** @type {{answer: any, error: ApiError | null, busy: boolean}} */ ({ answer: null, error: null, busy: false }),
  );
  const body = { query, ...(only && { to: only }), catalog: only !== "" };
  const ask = async (/** @type {Event} */ event) => {
    event.preventDefault();
    setState({ answer: null, error: null, busy: true });
    try {
      setState({ answer: await call(instance, "POST", "/v1/whois", body), error: null, busy: false });
    } catch (error) {
      if (!(error instanceof ApiError)) throw error;
      setState({ answer: null, error, busy: false });
    }
  };
  const { answer, error, busy } = state;
  const words = [...(query ? [query] : []), ...(only ? ["--to", only, "--catalog"] : [])];
  return html`<${Panel} title="Ask now" aside=${html`<span class="muted">whois, on the wire</span>`}>
    <form class="filters" onSubmit=${ask}>
      ${!only && html`<label>Query<input value=${query} onInput=${(/** @type {any} */ event) => setQuery(event.target.value)} placeholder="everybody, or a whole name or capability" size="36" /></label>`}
      <button disabled=${busy}>${busy ? "Asking …" : only ? "Ask for its card" : "Ask"}</button>
    </form>
    <${Lines} label="whois" action=${{ method: "POST", path: "/v1/whois", body, ctl: ["whois", ...words], python: `client.whois(query=${JSON.stringify(query)}${only ? `, to=${JSON.stringify(only)}, catalog=True` : ""})` }} />
    <${Problem} error=${error} />
    <div aria-live="polite">${
      answer !== null &&
      html`<p class="muted">${answer.peers.length} of ${answer.expected} known that match answered in ${Math.round(answer.elapsed_ms)} ms (${answer.ended})</p>
      <${Table} caption="Answers" columns=${["Peer", "Trust", "After", "Name", "Capabilities", "Summary"]} none="Nobody answered."
        rows=${answer.peers.map((/** @type {any} */ one, /** @type {number} */ at) => ({
          key: at,
          href: to(instance, "peers", one.peer_id),
          cells: [
            html`<${Peer} id=${one.peer_id} />`,
            html`<${State} of=${one.trust} />`,
            `${Math.round(one.rtt_ms)} ms`,
            one.card.display_name && html`<${Said} by=${one.peer_id}>${one.card.display_name}<//>`,
            one.capabilities
              ? html`<${Records} of=${one.capabilities} />`
              : html`<${Names} of=${capabilities(one.card)} />`,
            one.summary && html`<${Said} by=${one.peer_id}>${one.summary}<//>`,
          ],
        }))} />`
    }</div>
  <//>`;
}

/** @param {{of: any[]}} props */
function Records({ of }) {
  return of.map(
    (one, at) =>
      html`<div key=${at}><${Said}>${one.id}<//> ${one.summary && html`<${Said}>${one.summary}<//>`} ${one.digest && html`<code title=${visible(String(one.digest))}>${visible(String(one.digest).slice(0, 19))}…</code>`}</div>`,
  );
}
