// Open a work as a form: for a peer or a capability.

import { html, useState } from "../vendor/preact-htm.js";
import { statusOf } from "../lib/clock.js";
import { visible } from "../lib/format.js";
import { useLive } from "../lib/live.js";
import { to } from "../lib/router.js";
import { call } from "../lib/session.js";
import { Action, Panel, Problem, useTitle } from "../lib/ui.js";

/** @typedef {{by: string, to: string, capability: string, text: string, channel: string, accept: string, progress: string, direct: boolean}} Form */

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
export function Open({ instance, route }) {
  const heading = useTitle("Open a work");
  const given = (/** @type {string} */ name) => route.query.get(name) ?? "";
  const [form, setForm] = useState(
    /** @type {Form} */ ({
      by: given("to_capability") ? "capability" : "peer",
      to: given("to"),
      capability: given("to_capability"),
      text: given("text"),
      channel: given("channel"),
      accept: given("accept_within"),
      progress: given("progress_within"),
      direct: given("direct") !== "",
    }),
  );
  const { data, error } = useLive(
    instance,
    async () => {
      const [status, { peers }] = await Promise.all([statusOf(instance), call(instance, "GET", "/v1/peers")]);
      return { channels: status.channels, ...choices(peers) };
    },
    [],
    () => false,
  );
  const set = (/** @type {Partial<Form>} */ changed) => setForm({ ...form, ...changed });
  const field = (/** @type {keyof Form} */ name) => ({
    value: form[name],
    onInput: (/** @type {any} */ event) => set({ [name]: event.target.value }),
  });
  const ready = (form.by === "peer" ? form.to : form.capability).trim() !== "" && form.text.trim() !== "";
  return html`<h1 ref=${heading} tabindex="-1">Open a work</h1>
    <${Problem} error=${error} />
    <form class="form" onSubmit=${(/** @type {SubmitEvent} */ event) => event.preventDefault()}>
      <${Panel} title="For whom">
        <fieldset class="choice"><legend class="unseen">For whom</legend>
          <label><input type="radio" name="by" checked=${form.by === "peer"} onChange=${() => set({ by: "peer" })} /> a peer</label>
          <label><input type="radio" name="by" checked=${form.by === "capability"} onChange=${() => set({ by: "capability" })} /> a free peer with a capability</label>
        </fieldset>
        ${
          form.by === "peer"
            ? html`<label class="field">Peer<input ...${field("to")} list="peers" autocomplete="off" spellcheck=${false} placeholder="id or nickname" required /></label>
            <label class="tick"><input type="checkbox" checked=${form.direct} onChange=${(/** @type {any} */ event) => set({ direct: event.target.checked })} /> in the direct room with that peer</label>`
            : html`<label class="field">Capability<input ...${field("capability")} list="capabilities" autocomplete="off" spellcheck=${false} placeholder="such as test.run" required /></label>`
        }
        <datalist id="peers">${data?.peers.map((/** @type {string} */ one) => html`<option key=${one} value=${visible(one)} />`)}</datalist>
        <datalist id="capabilities">${data?.capabilities.map((/** @type {string} */ one) => html`<option key=${one} value=${visible(one)} />`)}</datalist>
      <//>
      <${Panel} title="What to do">
        <label class="field">Text<textarea ...${field("text")} required></textarea></label>
        <div class="filters">
          ${
            (data?.channels.length ?? 0) > 1 || form.channel !== ""
              ? html`<label>Channel<select value=${form.channel} onChange=${(/** @type {any} */ event) => set({ channel: event.target.value })}>
              <option value="">as configured</option>${data?.channels.map((/** @type {string} */ one) => html`<option key=${one} value=${one}>${one}</option>`)}
            </select></label>`
              : null
          }
          <label>Accept within<input ...${field("accept")} size="12" placeholder="as configured" title="such as 30s, 5m or 1h; 0: never. Else it is canceled, or handed over" /></label>
          <label>Progress within<input ...${field("progress")} size="12" placeholder="as configured" title="such as 30s, 5m or 1h; 0: never. Else it is canceled" /></label>
        </div>
        <${Action} label="Open the work" disabled=${!ready} action=${action(form)}
          done=${(/** @type {any} */ answer) => {
            location.hash = to(instance, "works", answer.work_id);
          }} />
      <//>
    </form>`;
}

/**
 * Who and what can be asked: those that are present.
 * @param {import("../lib/api.js").Peer[]} peers
 */
function choices(peers) {
  const present = peers.filter((one) => one.presence === "active");
  const ids = present.flatMap(({ card }) => /** @type {string[]} */ (card.capabilities ?? []));
  return { peers: [...new Set(present.map((one) => one.peer_id))], capabilities: [...new Set(ids)].sort() };
}

/**
 * @param {Form} form
 * @returns {import("../lib/ui.js").ActionOf}
 */
function action(form) {
  const peer = form.by === "peer";
  const pairs = /** @type {[string, string | boolean][]} */ ([
    peer ? ["to", form.to.trim()] : ["to_capability", form.capability.trim()],
    ["text", form.text],
    ["channel", form.channel],
    ["accept_within", form.accept.trim()],
    ["progress_within", form.progress.trim()],
    ["direct", peer && form.direct],
  ]).filter(([, value]) => value !== "" && value !== false);
  return {
    method: "POST",
    path: "/v1/works",
    body: Object.fromEntries(pairs),
    ctl: [
      "work",
      "open",
      ...pairs.flatMap(([name, value]) => [
        `--${name.replaceAll("_", "-")}`,
        ...(value === true ? [] : [String(value)]),
      ]),
    ],
    python: `client.open_work(${pairs.map(([name, value]) => `${name}=${value === true ? "True" : JSON.stringify(value)}`).join(", ")})`,
  };
}
