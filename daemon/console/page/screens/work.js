// One work: its state, who has it, why it does not move, its question, its files, and the ladder of its messages.

import { html, useState } from "../vendor/preact-htm.js";
import { statusOf } from "../lib/clock.js";
import { age, clock, visible } from "../lib/format.js";
import { ladder, told } from "../lib/ladder.js";
import { useLive } from "../lib/live.js";
import { to } from "../lib/router.js";
import { ApiError, call, request, withQuery } from "../lib/session.js";
import {
  Action,
  Ago,
  Copy,
  Facts,
  Json,
  MessageLink,
  Panel,
  Peer,
  Pending,
  Problem,
  quoted,
  Said,
  State,
  Unseen,
  useChanges,
  useTitle,
  WorkLink,
} from "../lib/ui.js";

const ENDED = ["completed", "failed", "canceled"];
const MESSAGES = 1000;

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
export function Work({ instance, route }) {
  const load = async () => {
    const found = await call(instance, "GET", `/v1/works/${encodeURIComponent(route.id)}`);
    const messages = (
      await call(instance, "GET", withQuery("/v1/messages", { work: found.work.work_id, last: 1, limit: MESSAGES }))
    ).messages;
    return { ...found, messages, other: await otherSide(instance, found.work) };
  };
  const { data, error, reload } = useLive(
    instance,
    load,
    [route.id],
    (event) => event.message?.work_id === route.id || event.work !== null,
  );
  const shown = data?.work;
  const heading = useTitle("Work", {
    of: shown && `${shown.state.replaceAll("_", " ")} ${quoted(shown.text)}`,
    ready: data !== null || error !== null,
  });
  useChanges(shown ? [shown] : null, { reports: true });
  if (data === null) return html`<h1 ref=${heading} tabindex="-1">Work</h1><${Pending} error=${error} />`;
  const { work, why, limits } = data;
  return html`<h1 ref=${heading} tabindex="-1"><${State} of=${work.state} /> <${Said} by=${work.initiator}>${work.text || "(no text)"}<//></h1>
    <${Problem} error=${error} />
    ${why && work.state !== "needs_input" && html`<${Panel} title="Why it does not move"><p>${visible(why.text)}</p>${why.said && html`<${Said} block>${why.said}<//>`}${why.hint && html`<p class="muted">${visible(why.hint)}</p>`}<//>`}
    ${work.state === "needs_input" && html`<${Question} work=${work} reload=${reload} />`}
    <${Panel} title="State" aside=${html`<code>${visible(work.work_id)}</code><${Copy} text=${work.work_id} label="Copy id" />`}>
      <${Facts} of=${[
        ["has it", html`<${Peer} id=${work.target} />`],
        ["opened by", html`<${Peer} id=${work.initiator} />`],
        ["capability", work.capability && html`<${Said}>${work.capability}<//>`],
        ["opened", html`<${Ago} ms=${work.opened_ms} />`],
        ["in this state since", html`<${Ago} ms=${work.updated_ms} />`],
        ["channel", work.channel],
        ["trust", work.trust],
        ["accept within", limits.accept_within && age(1000 * limits.accept_within)],
        ["progress within", limits.progress_within && age(1000 * limits.progress_within)],
        [
          "tried before",
          data.attempts.length
            ? data.attempts.map(
                (/** @type {any} */ one) =>
                  html`<span key=${one.work_id}><${WorkLink} id=${one.work_id} /> <${Peer} id=${one.peer} /> ${visible(one.why)} </span>`,
              )
            : null,
        ],
      ]} />
      ${work.message && html`<p class="muted">last report</p><${Said} block by=${work.target}>${work.message}<//>`}
      ${work.result !== null && work.result !== undefined && html`<p class="muted">result</p><${Json} of=${work.result} />`}
      <${Files} instance=${instance} refs=${work.artifacts ?? []} />
      <div class="actions">
        ${
          !ENDED.includes(work.state) &&
          work.role !== "observer" &&
          html`<${Action} label="Cancel" danger confirm="Cancel this work?" done=${reload} action=${{
            method: "POST",
            path: `/v1/works/${encodeURIComponent(work.work_id)}/cancel`,
            body: { channel: work.channel },
            ctl: ["work", "cancel", work.work_id],
            python: `client.act_on_work(${JSON.stringify(work.work_id)}, "cancel")`,
          }} />`
        }
        ${ENDED.includes(work.state) && work.role === "initiator" && html`<a href=${to(instance, "open", "", { to: work.capability ? "" : work.target, to_capability: work.capability ?? "", text: work.text, channel: work.channel })}>Open again</a>`}
      </div>
    <//>
    <${Panel} title="Messages" aside=${html`<span class="muted">${data.other.name ? `from both sides: ${instance} and ${data.other.name}` : "as this side has them"}</span>`}>
      <${Ladder} work=${work} messages=${data.messages} other=${data.other} />
    <//>`;
}

/**
 * The messages as the other daemon has them, where it is one of ours.
 * @param {string} instance
 * @param {any} work
 * @returns {Promise<{name: string, messages: any[]}>}
 */
async function otherSide(instance, work) {
  const peer = work.role === "initiator" ? work.target : work.initiator;
  try {
    const { instances } = await (await request("/instances")).json();
    for (const one of instances) {
      if (one.name === instance || !one.running) continue;
      const status = await statusOf(one.name);
      if (status.peer_id !== peer) continue;
      const { messages } = await call(
        one.name,
        "GET",
        withQuery("/v1/messages", { work: work.work_id, last: 1, limit: MESSAGES }),
      );
      return { name: one.name, messages };
    }
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
  }
  return { name: "", messages: [] };
}

/**
 * The question of a work, and the answer where it is ours to give.
 * @param {{work: any, reload: () => void, title?: any, about?: string}} props `about` tells it from other questions
 */
export function Question({ work, reload, title = "It needs an answer", about = "" }) {
  const [text, setText] = useState("");
  return html`<${Panel} title=${title} kind="asks">
    <${Said} block by=${work.target}>${work.message ?? "(no question was given)"}<//>
    ${
      work.role === "initiator"
        ? html`<label class="field">Answer<${Unseen}> ${about}<//><textarea value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)}></textarea></label>
    <${Action} label="Send the answer" about=${about} disabled=${text.trim() === ""} done=${() => {
      setText("");
      reload();
    }} action=${{
      method: "POST",
      path: `/v1/works/${encodeURIComponent(work.work_id)}/say`,
      body: { message: text, channel: work.channel },
      ctl: ["work", "say", work.work_id, text || "ANSWER"],
      python: `client.act_on_work(${JSON.stringify(work.work_id)}, "say", message=${JSON.stringify(text)})`,
    }} />`
        : html`<p class="muted">Its initiator has to answer.</p>`
    }
  <//>`;
}

/** @param {{instance: string, refs: any[]}} props */
function Files({ instance, refs }) {
  const [error, setError] = useState(/** @type {ApiError | null} */ (null));
  if (refs.length === 0) return null;
  const save = async (/** @type {RegExpExecArray} */ [, workId, name]) => {
    try {
      const response = await request(`/instances/${encodeURIComponent(instance)}/v1/artifacts/${workId}/${name}`);
      const link = document.createElement("a");
      link.href = URL.createObjectURL(await response.blob());
      link.download = decodeURIComponent(name);
      link.click();
      URL.revokeObjectURL(link.href);
    } catch (problem) {
      if (!(problem instanceof ApiError)) throw problem;
      setError(problem);
    }
  };
  return html`<h3>Files</h3><ul class="files">${refs.map((ref, at) => {
    const uri = String(typeof ref === "string" ? ref : (ref.uri ?? ref.url ?? JSON.stringify(ref)));
    const own = /^artifact:\/\/([^/?#]+)\/([^/?#]+)$/.exec(uri);
    return html`<li key=${at}><${Said}>${uri}<//> ${own ? html`<button type="button" class="small" onClick=${() => save(own)}>Save<${Unseen}> ${visible(decodeURIComponent(own[2]))}<//></button>` : html`<span class="muted">elsewhere: not opened from here</span>`}</li>`;
  })}</ul><${Problem} error=${error} />`;
}

/** @param {{work: any, messages: any[], other: {name: string, messages: any[]}}} props */
function Ladder({ work, messages, other }) {
  const rows = ladder(messages, other.messages);
  const us = work.role === "target" ? work.target : work.initiator;
  const them = work.role === "target" ? work.initiator : work.target;
  if (rows.length === 0) return html`<p class="none">Its messages are not stored any more.</p>`;
  return html`<ol class="ladder" aria-label="Messages, oldest first">
    <li class="ends" aria-hidden="true"><span></span><bdi>${visible(us)}</bdi><bdi>${visible(them)}</bdi></li>
    ${rows.map((row, at) => ("gap" in row ? html`<li key=${at} class="gap">${age(row.gap)} without a message</li>` : html`<${Rung} key=${row.message.id} row=${row} />`))}
  </ol>`;
}

/** @param {{row: import("../lib/ladder.js").Step}} props */
function Rung({ row: { message, theirs, at, times } }) {
  const { what, text } = told(message);
  const under =
    theirs === null
      ? ""
      : ` · ${message.direction === "out" ? `arrived ${Math.max(0, theirs.received_ms - at)} ms later` : `sent ${Math.max(0, at - theirs.received_ms)} ms earlier`}`;
  return html`<li class=${`step ${message.direction}`}>
    <time datetime=${new Date(at).toISOString()}>${clock(at)}</time>
    <div class="arrow">
      <div class="head"><${Unseen}>${message.direction === "out" ? "sent" : message.direction === "in" ? "received" : "observed"}<//><${MessageLink} id=${message.id}><strong>${visible(what)}</strong><//>
        ${times > 1 && html`<span class="muted">${times} times</span>`}
        ${message.delivery && html`<${State} of=${message.delivery} />`}
        <span class="muted">${message.outcome ? visible(message.outcome) : ""}${message.reason ? ` (${visible(message.reason)})` : ""}${under}</span></div>
      ${message.delivery_detail && html`<small>${visible(message.delivery_detail)}</small>`}
      ${text && html`<${Said} block by=${message.sender}>${text}<//>`}
    </div>
  </li>`;
}
