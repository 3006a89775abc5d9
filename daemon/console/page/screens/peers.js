// Peers: who is there, who can do what, and a question to all of them. One peer is in peer.js.

import { html } from "../vendor/preact-htm.js";
import { visible, workload } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { refine, to } from "../lib/router.js";
import { call, withQuery } from "../lib/session.js";
import { Ago, Panel, Peer, Problem, Said, State, Table, useTitle } from "../lib/ui.js";
import { OnePeer } from "./peer.js";
import { capabilities, Names, Whois } from "./whois.js";

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
export function Peers({ instance, route }) {
  return route.id === ""
    ? html`<${All} instance=${instance} route=${route} />`
    : html`<${OnePeer} instance=${instance} id=${route.id} />`;
}

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
function All({ instance, route }) {
  const heading = useTitle("Peers");
  const query = Object.fromEntries(route.query);
  const { data, error } = useLive(
    instance,
    () => call(instance, "GET", withQuery("/v1/peers", { all: query.all })),
    [query.all],
    () => false,
  );
  const has = (/** @type {unknown} */ text, /** @type {string} */ part) =>
    String(text ?? "")
      .toLowerCase()
      .includes(part.toLowerCase());
  const peers = (data?.peers ?? []).filter(
    (/** @type {any} */ one) =>
      (!query.text || [one.peer_id, one.summary, one.card.display_name].some((text) => has(text, query.text))) &&
      (!query.capability || capabilities(one.card).some((name) => has(name, query.capability))) &&
      (!query.presence || one.presence === query.presence),
  );
  const set = (/** @type {string} */ name) => (/** @type {any} */ event) =>
    refine(route, { [name]: event.target.value });
  return html`<h1 ref=${heading} tabindex="-1">Peers</h1>
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>Text<input type="search" value=${query.text ?? ""} onInput=${set("text")} placeholder="part of id, name or summary" /></label>
      <label>Capability<input type="search" value=${query.capability ?? ""} onInput=${set("capability")} placeholder="such as test.run" /></label>
      <label>Presence<select value=${query.presence ?? ""} onChange=${set("presence")}><option value="">any</option>${["active", "inactive", "local", ...(query.all ? ["expired"] : [])].map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select></label>
      <label class="tick"><input type="checkbox" checked=${query.all === "1"} onChange=${(/** @type {any} */ event) => refine(route, { all: event.target.checked ? "1" : "" })} /> expired ones, too</label>
    </form>
    <${Problem} error=${error} />
    <${Panel} title="Known peers" aside=${html`<span class="muted">${peers.length}</span>`}>
      <${Table} caption="Known peers" columns=${["Peer", "Presence", "Trust", "Channel", "Seen", "Version", "Load", "Capabilities", "Summary"]} none=${data === null ? "Loading …" : "No peer fits."}
        rows=${peers.map((/** @type {any} */ one) => ({
          key: `${one.channel}/${one.peer_id}`,
          href: to(instance, "peers", one.peer_id),
          cells: [
            html`<${Peer} id=${one.peer_id} />`,
            html`<${State} of=${one.presence} />`,
            html`<${State} of=${one.trust} />`,
            one.channel,
            one.presence === "local" ? "now" : html`<${Ago} ms=${one.last_seen_ms} />`,
            one.version ? visible(one.version) : one.aghbus === false ? "another program" : "",
            workload(one),
            html`<${Names} of=${capabilities(one.card)} />`,
            one.summary && html`<${Said} by=${one.peer_id}>${one.summary}<//>`,
          ],
        }))} />
    <//>
    <${Capabilities} peers=${peers} />
    <${Whois} instance=${instance} />`;
}

/** @param {{peers: any[]}} props */
function Capabilities({ peers }) {
  /** @type {Map<string, Set<string>>} */
  const found = new Map();
  for (const peer of peers)
    for (const name of capabilities(peer.card)) found.set(name, (found.get(name) ?? new Set()).add(peer.peer_id));
  return html`<${Panel} title="Who can do what">
    <${Table} caption="Capabilities and the peers that announce them" columns=${["Capability", "Peers"]} none="No peer here announces a capability."
      rows=${[...found].sort(([one], [other]) => (one < other ? -1 : 1)).map(([name, ids]) => ({ key: name, cells: [html`<${Said}>${name}<//>`, [...ids].map((id) => html`<${Peer} key=${id} id=${id} />${" "}`)] }))} />
  <//>`;
}
