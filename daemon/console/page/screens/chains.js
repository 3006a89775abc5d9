// Chains: the runs, and one run as a graph with the state of each node, its input and output, and the questions it asks.

import { html, useState } from "../vendor/preact-htm.js";
import { graphOf } from "../lib/graph.js";
import { age, visible } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { refine, to } from "../lib/router.js";
import { call, withQuery } from "../lib/session.js";
import {
  Action,
  Ago,
  Copy,
  Facts,
  Json,
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
import { GraphView } from "./chain-graph.js";

/** @typedef {import("../lib/api.js").ChainRun} Run */
/** @typedef {import("../lib/api.js").ChainStep} Step */
/** @typedef {import("../lib/router.js").Route} Route */

const STATES = ["waiting", "running", "completed", "failed", "canceled"];
const LIMIT = 500;

/** @param {{instance: string, route: Route}} props */
export function Chains({ instance, route }) {
  return route.id === ""
    ? html`<${Runs} instance=${instance} route=${route} />`
    : html`<${OneRun} instance=${instance} route=${route} />`;
}

/** @param {{instance: string, route: Route}} props */
function Runs({ instance, route }) {
  const heading = useTitle("Chains");
  const state = route.query.get("state") ?? "";
  const { data, error } = useLive(
    instance,
    () => call(instance, "GET", withQuery("/v1/chains/runs", { state, limit: LIMIT })),
    [state],
    (event) => event.work !== null,
  );
  /** @type {import("../lib/api.js").ChainRunSummary[]} */
  const runs = data?.runs ?? [];
  return html`<h1 ref=${heading} tabindex="-1">Chains</h1>
    <${Panel} title="Runs">
    <form class="filters" role="search" onSubmit=${(/** @type {Event} */ event) => event.preventDefault()}>
      <label>State<select value=${state} onChange=${(/** @type {any} */ event) => refine(route, { state: event.target.value })}>
        <option value="">all</option>${STATES.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
      </select></label>
    </form>
    <${Problem} error=${error} />
    <${Table} caption="Runs of chains, latest change first" columns=${["State", "Chain", "Node", "Visits", "Changed", "Run"]}
      none=${data === null ? "Loading …" : "No run. Start one: aghctl chain run FILE (docs/adapters/chains.md)."}
      rows=${runs.map((run) => ({
        key: run.run_id,
        href: to(instance, "chains", run.run_id),
        kind: run.state === "waiting" ? "asks" : run.state === "failed" ? "failed" : "",
        cells: [
          html`<${State} of=${run.state} />`,
          html`<a href=${to(instance, "chains", run.run_id)}>${visible(run.name)}</a>`,
          html`${visible(run.node)}${run.question && html`: <${Said}>${run.question}<//>`}`,
          `${run.steps} of at most ${run.max_steps}`,
          html`<${Ago} ms=${run.updated_ms} />`,
          html`<code>${visible(run.run_id)}</code>`,
        ],
      }))} /><//>`;
}

/** @param {{instance: string, route: Route}} props */
function OneRun({ instance, route }) {
  const path = `/v1/chains/runs/${encodeURIComponent(route.id)}`;
  const { data, error, reload } = useLive(
    instance,
    () => call(instance, "GET", path),
    [route.id],
    (event) => event.work !== null,
  );
  const heading = useTitle("Run of a chain", {
    of: data && `${data.state} ${visible(data.name)}`,
    ready: data !== null || error !== null,
  });
  if (data === null)
    return html`<h1 ref=${heading} tabindex="-1">Run of a chain</h1>
      <${Pending} error=${error} />`;
  const run = /** @type {Run} */ (data);
  const chosen = route.query.get("node") ?? "";
  const node = chosen in /** @type {object} */ (run.chain.nodes) ? chosen : run.node;
  const asking = run.history.filter((step) => step.ended_ms === null && step.work_state === "needs_input");
  return html`<h1 ref=${heading} tabindex="-1"><${State} of=${run.state} /> ${visible(run.name)}</h1>
    <${Problem} error=${error} />
    ${asking.map((step) => html`<${Question} key=${step.step} run=${run} step=${step} path=${path} reload=${reload} />`)}
    <${Panel} title="Run" aside=${html`<code>${visible(run.run_id)}</code> <${Copy} text=${run.run_id} label="Copy id" />`}>
      <${Facts} of=${[
        ["visits", `${run.steps} of at most ${run.max_steps}`],
        ["started", html`<${Ago} ms=${run.created_ms} />`],
        ["changed", html`<${Ago} ms=${run.updated_ms} />`],
        ["channel", run.channel],
      ]} />
      ${run.error && html`<p class="muted">why it failed</p><${Said} block>${run.error}<//>`}
      <details><summary>Input of the run</summary><${Value} of=${run.input} /></details>
      <div class="actions">
        ${
          ["running", "waiting"].includes(run.state) &&
          html`<${Action} label="Cancel the run" danger confirm="Cancel this run and its works?" done=${reload} action=${{
            method: "POST",
            path: `${path}/cancel`,
            body: {},
            ctl: ["chain", "cancel", run.run_id],
            python: `client.cancel_chain(${JSON.stringify(run.run_id)})`,
          }} />`
        }
      </div>
    <//>
    <div class="columns graphed">
      <${Panel} title="Graph"><${GraphView} graph=${graphOf(run.chain)} history=${run.history} chosen=${node}
        link=${(/** @type {string} */ name) => to(instance, "chains", route.id, { node: name })} /><//>
      <${Node} instance=${instance} run=${run} name=${node} />
    </div>
    <${Panel} title="Visits"><${Visits} instance=${instance} run=${run} /><//>`;
}

/** @param {{run: Run, step: Step, path: string, reload: () => void}} props */
function Question({ run, step, path, reload }) {
  const [text, setText] = useState("");
  const words = ["chain", "resume", run.run_id, "--node", step.node, "--no-wait", "--answer", text || "ANSWER"];
  return html`<${Panel} title=${`${visible(step.node)} needs an answer`} kind="asks">
    <${Said} block by=${step.peer ?? "a peer"}>${step.message ?? "(no question was given)"}<//>
    <label class="field">Answer<${Unseen}> to ${visible(step.node)}<//><textarea value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea></label>
    <${Action} label="Send the answer" about=${`to ${visible(step.node)}`} disabled=${text.trim() === ""}
      done=${() => {
        setText("");
        reload();
      }}
      action=${{
        method: "POST",
        path: `${path}/answer`,
        body: { text, node: step.node },
        ctl: words,
        python: `client.answer_chain(${JSON.stringify(run.run_id)}, text=${JSON.stringify(text)}, node=${JSON.stringify(step.node)})`,
      }} />
  <//>`;
}

/**
 * One node: what the file says, its last visit, and what it was given and gave.
 * @param {{instance: string, run: Run, name: string}} props
 */
function Node({ instance, run, name }) {
  const node = /** @type {any} */ (run.chain.nodes)[name];
  const visits = run.history.filter((step) => step.node === name);
  const last = visits.at(-1);
  const next = graphOf(run.chain).edges.filter((edge) => edge.from === name);
  return html`<${Panel} title=${visible(name)} aside=${last ? html`<${State} of=${last.work_state} />` : html`<span class="muted">not visited</span>`}>
    <${Facts} of=${[
      ["peer", last?.peer ? html`<${Peer} id=${last.peer} />` : node.peer && html`<${Peer} id=${node.peer} />`],
      ["capability", node.capability && visible(node.capability)],
      ["writes the artifacts of", node.apply && visible(node.apply)],
      ["format", node.format && visible(node.format)],
      ["work", last?.work_id && html`<${WorkLink} id=${last.work_id} />`],
      ["visits", visits.length || ""],
      ["took", last?.ended_ms ? age(last.ended_ms - last.started_ms) : ""],
    ]} />
    ${last?.message && html`<p class="muted">last report</p><${Said} block by=${last.peer ?? "a peer"}>${last.message}<//>`}
    ${
      next.length > 0 &&
      html`<p class="muted">then</p><ul class="plain">${next.map(
        (edge, at) =>
          html`<li key=${at}>${edge.back ? "↑" : "→"} ${visible(edge.to)} ${edge.joins ? html`<span class="muted">needs it</span>` : null} ${edge.label && html`<code>${visible(edge.label)}</code>`}</li>`,
      )}</ul>`
    }
    ${last?.work_id && html`<${Input} key=${last.work_id} instance=${instance} id=${last.work_id} />`}
    ${last?.response !== null && last?.response !== undefined && html`<h3>Output</h3><${Value} of=${last.response} />`}
    ${node.input !== undefined && html`<details><summary>Template of its input</summary><${Value} of=${node.input} /></details>`}
  <//>`;
}

/** What the node was given: the opening of its work. @param {{instance: string, id: string}} props */
function Input({ instance, id }) {
  const { data, error } = useLive(
    instance,
    () => call(instance, "GET", withQuery("/v1/messages", { work: id, limit: 1 })),
    [id],
    () => false,
  );
  const body = data?.messages[0]?.envelope.body;
  if (data !== null && body === undefined) return html`<p class="none">Its input is not stored any more.</p>`;
  return html`<h3>Input</h3><${Problem} error=${error} />${body !== undefined && html`<${Value} of=${readable(body.text ?? body)} />`}`;
}

/** A text as it is, else JSON. @param {{of: unknown}} props */
function Value({ of }) {
  return typeof of === "string" ? html`<${Said} block>${of}<//>` : html`<${Json} of=${of} />`;
}

/** JSON that came as text, as JSON. @param {unknown} given */
function readable(given) {
  try {
    return typeof given === "string" && /^\s*[[{]/.test(given) ? JSON.parse(given) : given;
  } catch {
    return given;
  }
}

/** @param {{instance: string, run: Run}} props */
function Visits({ instance, run }) {
  const several = new Set(run.history.map((step) => step.branch)).size > 1;
  return html`<${Table} caption="Visits, in order" columns=${["Visit", "Node", "State", "Peer", "Message", "Began", "Took"]}
    none="No node was visited yet."
    rows=${run.history.map((step) => ({
      key: step.step,
      kind: step.work_state === "needs_input" ? "asks" : step.work_state === "failed" ? "failed" : "",
      href: step.work_id ? to(instance, "works", step.work_id) : undefined,
      cells: [
        step.step,
        html`<a href=${to(instance, "chains", run.run_id, { node: step.node })}>${visible(step.node)}</a>${several && step.branch !== step.node ? html` <span class="muted">in ${visible(step.branch)}</span>` : null}`,
        html`<${State} of=${step.work_state} />`,
        step.peer ? html`<${Peer} id=${step.peer} />` : "–",
        step.message ? html`<${Said} by=${step.peer ?? "a peer"}>${step.message}<//>` : "",
        html`<${Ago} ms=${step.started_ms} />`,
        step.ended_ms === null ? "" : age(step.ended_ms - step.started_ms),
      ],
    }))} />`;
}
