// One peer: its card, its key, the rules about it, what it has with us, and what a change of trust would do before it is made.

import { html, useContext, useState } from "../vendor/preact-htm.js";
import { shortId, visible, workload } from "../lib/format.js";
import { told } from "../lib/ladder.js";
import { useLive } from "../lib/live.js";
import { to } from "../lib/router.js";
import { call, withQuery } from "../lib/session.js";
import {
  Action,
  Ago,
  Facts,
  Instance,
  Json,
  MessageLink,
  Panel,
  Peer,
  Pending,
  Problem,
  Said,
  State,
  Table,
  Unseen,
  useTitle,
  WorkLink,
} from "../lib/ui.js";
import { capabilities, Names, Whois } from "./whois.js";

const LIMIT = 50;

/** The changes: what each is called, means, and does to the words of `aghctl trust`. */
const CHANGES = [
  {
    verb: "admit",
    ctl: "admit",
    undo: false,
    what: "Make it a contact: workers take its works, those that wait included.",
  },
  { verb: "unadmit", ctl: "admit", undo: true, what: "Take the admission back." },
  {
    verb: "deny",
    ctl: "deny",
    undo: false,
    what: "Refuse its messages from now on, in open works, too. Earlier messages stay.",
  },
  {
    verb: "refuse",
    ctl: "refuse",
    undo: false,
    what: "Deny it, drop its unread messages, and end the works that they opened.",
  },
  { verb: "undeny", ctl: "deny", undo: true, what: "Accept its messages again." },
  { verb: "pin", ctl: "pin", undo: false, what: "Only this key may use the nickname." },
  { verb: "unpin", ctl: "unpin", undo: false, what: "Let any key use the nickname again." },
  {
    verb: "allow",
    ctl: "allow",
    undo: false,
    what: "Put its key on the allow list. With a list, only the keys on it are accepted.",
  },
  { verb: "disallow", ctl: "allow", undo: true, what: "Take its key off the allow list." },
];
const OF_KEYS = ["pin", "allow", "disallow"]; // these need a peer that has one
const OPEN = ["submitted", "working", "needs_input"];

/** @param {{instance: string, id: string}} props */
export function OnePeer({ instance, id }) {
  const load = async () => {
    const get = (/** @type {string} */ path, /** @type {any} */ query) => call(instance, "GET", withQuery(path, query));
    const [peers, trust, open, works, messages, requests] = await Promise.all([
      get("/v1/peers", { all: 1 }),
      get("/v1/trust", {}),
      get("/v1/works", { peer: id, state: OPEN, limit: LIMIT }),
      get("/v1/works", { peer: id, limit: LIMIT }),
      get("/v1/messages", { peer: id, last: 1, limit: LIMIT }),
      get("/v1/requests", { limit: 1000 }),
    ]);
    const signed = messages.messages.findLast(
      (/** @type {any} */ one) => one.sender === id && one.trust === "verified" && one.envelope.proof,
    );
    return {
      seen: peers.peers.filter((/** @type {any} */ one) => one.peer_id === id),
      trust,
      key: signed?.envelope.proof.key_id ?? keyIn(trust, id),
      open: open.works,
      works: works.works,
      messages: messages.messages.reverse(),
      waits: requests.requests.find((/** @type {any} */ one) => one.peer === id) ?? null,
    };
  };
  const { data, error, reload } = useLive(instance, load, [id]);
  const heading = useTitle("Peer", { of: visible(id), ready: data !== null || error !== null });
  if (data === null)
    return html`<h1 ref=${heading} tabindex="-1"><bdi>${visible(id)}</bdi></h1><${Pending} error=${error} />`;
  const { seen, trust, key, waits } = data;
  const own = id === trust.peer_id;
  return html`<h1 ref=${heading} tabindex="-1"><bdi>${visible(id)}</bdi>${own && " (this daemon)"}</h1>
    <${Problem} error=${error} />
    ${seen.length === 0 && html`<p class="notice">Presence does not know this peer: it was not seen since the daemon started, or never.</p>`}
    ${waits && html`<p class="notice">It waits for admission since <${Ago} ms=${waits.since_ms} />: ${waits.messages} unread message${waits.messages === 1 ? "" : "s"}, ${waits.openings} work${waits.openings === 1 ? "" : "s"}.</p>`}
    <${Panel} title="Identity"><${Facts} of=${[
      ["nickname", html`<bdi>${visible(id.split("@")[0])}</bdi>`],
      [
        "key",
        key
          ? html`<code>${visible(key)}</code>`
          : id.includes("@")
            ? "its handle has half of its key id; no signed message of it is stored"
            : "none: anybody can use this name",
      ],
    ]} /><//>
    ${seen.map(
      (
        /** @type {any} */ one,
      ) => html`<${Panel} key=${one.channel} title=${html`Card on channel <bdi>${visible(one.channel)}</bdi>`} aside=${html`<${State} of=${one.presence} />`}>
      <${Facts} of=${[
        ["name", one.card.display_name && html`<${Said} by=${id}>${one.card.display_name}<//>`],
        ["summary", one.summary && html`<${Said} by=${id}>${one.summary}<//>`],
        ["capabilities", capabilities(one.card).length > 0 && html`<${Names} of=${capabilities(one.card)} />`],
        ["trust", html`<${State} of=${one.trust} />`],
        ["first seen", html`<${Ago} ms=${one.first_seen_ms} />`],
        ["last seen", html`<${Ago} ms=${one.last_seen_ms} />`],
        [
          "program",
          one.version
            ? `aghbus ${visible(one.version)}`
            : one.aghbus === false
              ? "another implementation"
              : "not known",
        ],
        ["load", workload(one)],
      ]} />
      <details><summary>whole card</summary><${Json} of=${one.card} /></details>
    <//>`,
    )}
    ${!own && html`<${Whois} instance=${instance} only=${id} />`}
    <${Rules} trust=${trust} id=${id} peerKey=${key} />
    ${!own && html`<${Change} id=${id} data=${data} reload=${reload} />`}
    <${Panel} title="Works with it" aside=${html`<a href=${to(instance, "overview", "", { peer: id })}>all<${Unseen}> works with it<//></a>`}><${Works} works=${data.works} /><//>
    <${Panel} title="Latest messages"><${Messages} messages=${data.messages} caption="Latest messages, the newest first" /><//>`;
}

/** The key that a rule names for a handle, which has half of it. @param {any} trust @param {string} id */
function keyIn(trust, id) {
  const [, half] = id.split("@");
  return half
    ? (trust.rules.find((/** @type {any} */ one) => one.who.startsWith(`sha256:${half}`))?.who ?? null)
    : null;
}

/** Whether a rule is about a peer. @param {any} rule @param {string} id @param {string | null} key */
function concerns(rule, id, key) {
  const [nickname, half] = id.split("@");
  const [, of] = rule.who.split("@");
  if (rule.who === "*" || (rule.who === "*@*" && half)) return true;
  return (
    rule.who === id ||
    rule.who === key ||
    (half && (of === half || rule.who.startsWith(`sha256:${half}`))) ||
    (rule.rule === "pin" && rule.subject === nickname)
  );
}

/** @param {{trust: any, id: string, peerKey: string | null}} props */
function Rules({ trust, id, peerKey }) {
  const rules = trust.rules.filter((/** @type {any} */ one) => concerns(one, id, peerKey));
  const others =
    trust.rules.some((/** @type {any} */ one) => one.rule === "allow") &&
    !rules.some((/** @type {any} */ one) => one.rule === "allow");
  return html`<${Panel} title="Trust rules about it" aside=${html`<span class="muted">mode ${trust.mode}, first use ${trust.first_use}</span>`}>
    ${others && peerKey !== null && html`<p class="notice">There is an allow list, and its key is not on it.</p>`}
    <${Table} caption="Trust rules about this peer" columns=${["Rule", "About", "Who", "By", "Since", "Used", "In force"]} none="No rule names it."
      rows=${rules.map((/** @type {any} */ one) => ({
        key: `${one.rule}/${one.subject}/${one.who}`,
        cells: [
          one.rule.replaceAll("_", " "),
          one.subject && html`<bdi>${visible(one.subject)}</bdi>`,
          html`<code>${visible(one.who)}</code>`,
          one.origin.replaceAll("_", " "),
          one.since_ms && html`<${Ago} ms=${one.since_ms} />`,
          one.used_ms && html`<${Ago} ms=${one.used_ms} />`,
          one.in_force ? "yes" : "no",
        ],
      }))} />
  <//>`;
}

/** A change of trust: chosen, previewed, made. @param {{id: string, data: any, reload: () => void}} props */
function Change({ id, data, reload }) {
  const [verb, setVerb] = useState(data.waits ? "admit" : "deny");
  const [preview, setPreview] = useState(/** @type {any} */ (null));
  const [made, setMade] = useState(/** @type {any} */ (null));
  const change = /** @type {(typeof CHANGES)[number]} */ (CHANGES.find((one) => one.verb === verb));
  const who = verb === "unpin" ? id.split("@")[0] : id;
  const words = ["trust", change.ctl, who, ...(change.undo ? ["--remove"] : [])];
  const of = (/** @type {boolean} */ dry) => ({
    method: "POST",
    path: `/v1/trust/${verb}`,
    body: { who, ...(dry && { dry_run: true }) },
    ctl: [...words, ...(dry ? ["--dry-run"] : [])],
    python: `client.change_trust("${verb}", who=${JSON.stringify(who)}${dry ? ", dry_run=True" : ""})`,
  });
  const unread = data.messages.filter(
    (/** @type {any} */ one) => one.sender === id && ["ready", "leased"].includes(one.delivery),
  );
  return html`<${Panel} title="Change its trust">
    <form class="filters" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>Change<select value=${verb} onChange=${(/** @type {any} */ event) => {
        setVerb(event.target.value);
        setPreview(null);
        setMade(null);
      }}>${CHANGES.filter((one) => id.includes("@") || !OF_KEYS.includes(one.verb)).map((one) => html`<option key=${one.verb} value=${one.verb}>${one.verb}</option>`)}</select></label>
    </form>
    <p>${change.what}</p>
    <div class="actions">
      <${Action} key=${`preview ${verb}`} label="Preview" done=${(/** @type {any} */ answer) => {
        setMade(null);
        setPreview(answer);
      }} action=${of(true)} />
      ${
        preview !== null &&
        html`<${Action} key=${verb} label=${`Make the change: ${verb}`} danger=${["deny", "refuse"].includes(verb)} disabled=${!preview.changed} done=${(
          /** @type {any} */ answer,
        ) => {
          setPreview(null);
          setMade(answer);
          reload();
        }} action=${of(false)} />`
      }
    </div>
    <div aria-live="polite">
      ${
        preview !== null &&
        html`<${Effect} answer=${preview} verb=${verb} would />
        <h3>What it concerns</h3>
        <p class="muted">${unread.length} of its latest ${LIMIT} messages ${unread.length === 1 ? "is" : "are"} unread, ${data.open.length === LIMIT ? `${LIMIT} or more` : data.open.length} work${data.open.length === 1 ? "" : "s"} with it ${data.open.length === 1 ? "is" : "are"} open.</p>
        <${Messages} messages=${unread} caption="Its unread messages" /><${Works} works=${data.open} />`
      }
      ${made !== null && html`<${Effect} answer=${made} verb=${verb} />`}
    </div>
  <//>`;
}

/** @param {{answer: any, verb: string, would?: boolean}} props */
function Effect({ answer, verb, would = false }) {
  const { rule } = answer;
  const gone = verb.startsWith("un") || verb === "disallow";
  const did = answer.changed ? `${would ? "would be " : ""}${gone ? "removed" : "added"}` : "is so already";
  return html`<div class="notice"><p>Rule <strong>${rule.rule.replaceAll("_", " ")}</strong> ${rule.subject && html`<bdi>${visible(rule.subject)}</bdi> = `}<code>${visible(rule.who)}</code> ${did}.</p>
    ${answer.purged && html`<p>${answer.purged.messages} unread message${answer.purged.messages === 1 ? "" : "s"} ${would ? "would be" : "are"} dead, ${answer.purged.works} work${answer.purged.works === 1 ? "" : "s"} closed.</p>`}
    ${answer.notes.map((/** @type {string} */ note) => html`<p key=${note}>${visible(note)}</p>`)}</div>`;
}

/** @param {{works: any[]}} props */
function Works({ works }) {
  const instance = useContext(Instance);
  return html`<${Table} caption="Works with this peer" columns=${["State", "Text", "From", "To", "Changed"]} none="No work with it is stored."
    rows=${works.map((one) => ({ key: one.work_id, href: to(instance, "works", one.work_id), cells: [html`<${State} of=${one.state} />`, html`<${WorkLink} id=${one.work_id}><${Said} by=${one.initiator}>${one.text || "(no text)"}<//><//>`, html`<${Peer} id=${one.initiator} />`, html`<${Peer} id=${one.target} />`, html`<${Ago} ms=${one.updated_ms} />`] }))} />`;
}

/** @param {{messages: any[], caption: string}} props */
function Messages({ messages, caption }) {
  const instance = useContext(Instance);
  return html`<${Table} caption=${caption} columns=${["Message", "Text", "Direction", "Delivery", "When", "Id"]} none="None."
    rows=${messages.map((one) => {
      const { what, text } = told(one);
      return {
        key: one.seq,
        href: to(instance, "messages", one.id),
        cells: [
          html`<${MessageLink} id=${one.id}>${visible(what)}<//>`,
          text && html`<${Said} by=${one.sender}>${text.slice(0, 200)}<//>`,
          one.direction,
          one.delivery && html`<${State} of=${one.delivery} />`,
          html`<${Ago} ms=${one.received_ms} />`,
          html`<code>${visible(shortId(one.id))}</code>`,
        ],
      };
    })} />`;
}
