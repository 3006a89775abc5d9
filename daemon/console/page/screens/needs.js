// Needs you: everything that waits for a person, answered in place.

import { html, useRef, useState } from "../vendor/preact-htm.js";
import { now, statusOf } from "../lib/clock.js";
import { age, size, visible } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { to } from "../lib/router.js";
import { call, withQuery } from "../lib/session.js";
import {
  Action,
  Ago,
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
import { DeadItems } from "./inbox.js";
import { Question } from "./work.js";

const LIMIT = 50;
const STALE_MS = 3_600_000;
const STALE_LOOK_MS = 60_000; // between two looks at all open works
const STALE_WORKS = 20;

/** How many things wait for an answer. The header counts the problems. @param {any} status */
export function waiting(status) {
  return status === null ? undefined : status.questions + status.requests + (status.inbox.dead ?? 0);
}

/** @param {{instance: string}} props */
export function Needs({ instance }) {
  const heading = useTitle("Needs you");
  const stale = useRef({ at: 0, works: /** @type {any[]} */ ([]) });
  const load = async () => {
    const get = (/** @type {string} */ path, /** @type {any} */ query) => call(instance, "GET", withQuery(path, query));
    const [status, questions, runs, requests, dead, quarantine] = await Promise.all([
      statusOf(instance),
      get("/v1/works", { state: "needs_input", role: "initiator", limit: LIMIT }),
      get("/v1/chains/runs", { state: "waiting", limit: LIMIT }),
      get("/v1/requests", { limit: LIMIT }),
      get("/v1/inbox", { state: "dead", limit: LIMIT }),
      get("/v1/quarantine", { limit: LIMIT }),
    ]);
    if (Date.now() - stale.current.at > STALE_LOOK_MS)
      stale.current = { at: Date.now(), works: await staleWorks(instance) };
    const runOf = await Promise.all(
      runs.runs.map((/** @type {any} */ run) => get(`/v1/chains/runs/${encodeURIComponent(run.run_id)}`, {})),
    );
    const ofRuns = new Set(runOf.flatMap((run) => run.history.map((/** @type {any} */ step) => step.work_id)));
    return {
      status,
      questions: questions.works.filter((/** @type {any} */ one) => !ofRuns.has(one.work_id)),
      runs: runs.runs,
      requests,
      dead,
      quarantined: quarantine.quarantined,
      stale: stale.current.works,
    };
  };
  const { data, error, reload } = useLive(instance, load, []);
  if (data === null) return html`<h1 ref=${heading} tabindex="-1">Needs you</h1><${Pending} error=${error} />`;
  const held = data.dead.items.filter((/** @type {any} */ one) => (one.last_error ?? "").startsWith("held: "));
  const dead = data.dead.items.filter((/** @type {any} */ one) => !held.includes(one));
  const former = data.status.former.filter((/** @type {any} */ one) => one.problem !== null);
  const nothing = [
    data.status.problems,
    former,
    data.questions,
    data.runs,
    data.requests.requests,
    data.dead.items,
    data.stale,
  ].every((one) => one.length === 0);
  return html`<h1 ref=${heading} tabindex="-1">Needs you</h1>
    <${Problem} error=${error} />
    ${nothing && html`<p class="notice">Nothing waits for you.</p>`}
    ${data.status.problems.length > 0 && html`<${Panel} title="Problems" aside=${html`<span class="muted">${data.status.problems.length}</span>`}><ul class="items">${data.status.problems.map((/** @type {string} */ one) => html`<li key=${one}>${visible(one)}</li>`)}</ul><//>`}
    ${former.length > 0 && html`<${Panel} title="Former identities">${former.map((/** @type {any} */ one) => html`<p key=${one.peer_id}><bdi>${visible(one.peer_id)}</bdi>: ${visible(one.problem)} <span class="muted">${one.open_works} open works, ${one.unsent} unsent messages</span></p>`)}<//>`}
    ${data.questions.map((/** @type {any} */ work, /** @type {number} */ at) => html`<div key=${work.work_id}><${Question} work=${work} reload=${reload} about=${`to question ${at + 1} of ${data.questions.length}`} title=${html`<${WorkLink} id=${work.work_id}><${Said} by=${work.initiator}>${work.text || "(no text)"}<//><//> <span class="muted">at</span> <${Peer} id=${work.target} /> <${Ago} ms=${work.updated_ms} />`} /></div>`)}
    ${data.runs.map((/** @type {any} */ run, /** @type {number} */ at) => html`<${Waiting} key=${run.run_id} about=${`to chain ${at + 1} of ${data.runs.length}`} instance=${instance} run=${run} reload=${reload} />`)}
    ${data.requests.requests.length > 0 && html`<${Requests} instance=${instance} requests=${data.requests.requests} more=${data.requests.more} reload=${reload} />`}
    ${held.length > 0 && html`<${Panel} title="Held openings" aside=${html`<span class="muted">they may have been carried out before the restore</span>`}><${DeadItems} items=${held} reload=${reload} /><//>`}
    ${dead.length > 0 && html`<${Panel} title="Dead letters" aside=${html`<a href=${to(instance, "inbox", "", { state: "dead" })}>${data.status.inbox.dead} in the inbox</a>`}><${DeadItems} items=${dead} reload=${reload} /><//>`}
    ${data.stale.length > 0 && html`<${Panel} title="Works that do not move" aside=${html`<span class="muted">open, and unchanged for more than ${age(STALE_MS)}</span>`}><${Stale} works=${data.stale} /><//>`}
    <${Quarantine} instance=${instance} quarantined=${data.quarantined} total=${data.status.quarantined} />`;
}

/** Open works that we take part in and that have not changed for long, the oldest first, with why. @param {string} instance */
async function staleWorks(instance) {
  const found = [];
  let before = null;
  do {
    const page = await call(
      instance,
      "GET",
      withQuery("/v1/works", { state: ["submitted", "working"], limit: 1000, before }),
    );
    found.push(
      ...page.works.filter((/** @type {any} */ one) => one.role !== "observer" && now() - one.updated_ms > STALE_MS),
    );
    before = page.next_before;
  } while (before !== null);
  const oldest = found.slice(-STALE_WORKS).reverse();
  return Promise.all(
    oldest.map(async (work) => ({
      work,
      why: (
        await call(
          instance,
          "GET",
          withQuery(`/v1/works/${encodeURIComponent(work.work_id)}`, { channel: work.channel }),
        )
      ).why,
    })),
  );
}

/** @param {{works: any[]}} props */
function Stale({ works }) {
  return html`<${Table} caption="Works that do not move, the oldest first" columns=${["Work", "State", "With", "Changed", "Why"]} none="All move."
    rows=${works.map(({ work, why }) => ({
      key: work.work_id,
      cells: [
        html`<${WorkLink} id=${work.work_id}><${Said} by=${work.initiator}>${work.text || "(no text)"}<//><//>`,
        html`<${State} of=${work.state} />`,
        html`<${Peer} id=${work.role === "target" ? work.initiator : work.target} />`,
        html`<${Ago} ms=${work.updated_ms} />`,
        why &&
          html`${visible(why.text)} ${why.said && html`<${Said}>${why.said}<//>`} <span class="muted">${visible(why.hint)}</span>`,
      ],
    }))} />`;
}

/** A run of a chain that asks. @param {{instance: string, run: any, about: string, reload: () => void}} props */
function Waiting({ instance, run, about, reload }) {
  const [text, setText] = useState("");
  return html`<${Panel} title=${html`A chain asks: <a href=${to(instance, "chains", run.run_id)}><bdi>${visible(run.name)}</bdi></a> <span class="muted">at node</span> <bdi>${visible(run.node)}</bdi>`} kind="asks">
    <${Said} block>${run.question ?? "(no question was given)"}<//>
    <label class="field">Answer<${Unseen}> ${about}<//><textarea value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea></label>
    <${Action} label="Send the answer" about=${about} disabled=${text.trim() === ""} done=${() => {
      setText("");
      reload();
    }} action=${{
      method: "POST",
      path: `/v1/chains/runs/${encodeURIComponent(run.run_id)}/answer`,
      body: { text, node: run.node },
      ctl: ["chain", "resume", run.run_id, "--node", run.node, "--answer", text || "ANSWER", "--no-wait"],
      python: `client.answer_chain(${JSON.stringify(run.run_id)}, text=${JSON.stringify(text)}, node=${JSON.stringify(run.node)})`,
    }} />
  <//>`;
}

/** @param {{instance: string, requests: any[], more: number, reload: () => void}} props */
function Requests({ instance, requests, more, reload }) {
  const change = (/** @type {string} */ label, /** @type {string} */ verb, /** @type {any} */ one, confirm = "") =>
    html`<${Action} label=${label} about=${visible(one.peer)} danger=${confirm !== ""} confirm=${confirm} done=${reload} action=${{
      method: "POST",
      path: `/v1/trust/${verb}`,
      body: { who: one.peer },
      ctl: ["trust", verb, one.peer],
      python: `client.change_trust("${verb}", who=${JSON.stringify(one.peer)})`,
    }} />`;
  return html`<${Panel} title="Peers that wait for admission" aside=${more > 0 && html`<span class="muted">and ${more} more</span>`}>
    <ul class="items">${requests.map(
      (one) => html`<li key=${one.peer} data-href=${to(instance, "peers", one.peer)}>
      <div class="head"><strong><${Peer} id=${one.peer} /></strong> <${State} of=${one.trust} /> <span class="muted">${one.openings} work${one.openings === 1 ? "" : "s"}, ${one.messages} message${one.messages === 1 ? "" : "s"}, since</span> <${Ago} ms=${one.since_ms} /></div>
      <p class="muted">${one.key_id ? html`key <code>${visible(one.key_id)}</code>` : "It has no key: anybody can use this name."}</p>
      <${Said} block by=${one.peer}>${one.text}<//>
      <div class="actions">${change("Admit", "admit", one)}${change("Refuse", "refuse", one, `Deny ${visible(one.peer)}, and close what it opened?`)}<a href=${to(instance, "peers", one.peer)}>what each would do<${Unseen}> to ${visible(one.peer)}<//></a></div>
    </li>`,
    )}</ul>
  <//>`;
}

/** @param {{instance: string, quarantined: any[], total: number}} props */
function Quarantine({ instance, quarantined, total }) {
  return html`<${Panel} title="Quarantine" aside=${total > 0 && html`<span class="muted">${total} refused message${total === 1 ? "" : "s"} kept, the latest first</span>`}>
    <${Table} caption="Refused messages, the latest first" columns=${["Received", "Reason", "From", "Detail", "Size"]} none="No message was refused."
      rows=${quarantined.map((one) => ({
        key: one.id,
        href: to(instance, "messages", String(one.id)),
        cells: [
          html`<${MessageLink} id=${String(one.id)}><${Ago} ms=${one.received_ms} /><//>`,
          one.reason,
          one.sender && html`<${Peer} id=${one.sender} />`,
          html`<${Said}>${one.detail}<//>`,
          size(one.size),
        ],
      }))} />
  <//>`;
}
