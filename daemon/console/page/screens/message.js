// One message: what it says as a model gets it, the envelope as sent, why it is trusted, what caused it and what it caused.

import { html, useRef, useState } from "../vendor/preact-htm.js";
import { size, visible } from "../lib/format.js";
import { told } from "../lib/ladder.js";
import { useLive } from "../lib/live.js";
import { ApiError, call, request, withQuery } from "../lib/session.js";
import {
  Ago,
  Copy,
  Facts,
  MessageLink,
  Panel,
  Peer,
  Pending,
  Problem,
  Said,
  State,
  Table,
  useTitle,
  WorkLink,
} from "../lib/ui.js";
import { InboxActions } from "./inbox.js";

const CAUSES = 20;
const SHOWN = 65_536; // characters of an envelope that are shown at first
const PAGE = 200;

/** @param {{instance: string, route: import("../lib/router.js").Route}} props */
export function Message({ instance, route }) {
  const known = useRef(new Known(instance));
  const { data, error, reload } = useLive(instance, () => known.current.load(route.id), [route.id]);
  const heading = useTitle("Message", {
    of: data?.message ? told(data.message).what : data && "refused",
    ready: data !== null || error !== null,
  });
  if (data === null) return html`<h1 ref=${heading} tabindex="-1">Message</h1><${Pending} error=${error} />`;
  const { message, why } = data;
  if (message === null)
    return html`<h1 ref=${heading} tabindex="-1">A refused message</h1><${Problem} error=${error} />
    <${Refused} quarantined=${data.quarantined} /><${Why} cases=${why} />`;
  const { what } = told(message);
  return html`<h1 ref=${heading} tabindex="-1"><bdi>${visible(what)}</bdi> ${message.direction === "out" ? "to" : "from"} <${Peer} id=${message.direction === "out" ? (message.to ?? "everybody") : message.sender} /></h1>
    <${Problem} error=${error} />
    ${message.damaged && html`<p class="notice problem">The stored bytes changed: see aghd check-store.</p>`}
    <${Panel} title="What it says" aside=${html`<span class="muted">as a model gets it</span>`}>
      <pre class="said" tabindex="0" dir="auto">${data.text}</pre>
    <//>
    <${Panel} title="Delivery" aside=${html`<code>${visible(message.id)}</code><${Copy} text=${message.id} label="Copy id" />`}>
      <${Facts} of=${[
        ["state", message.delivery && html`<${State} of=${message.delivery} />`],
        ["because", message.delivery_detail && html`<${Said}>${message.delivery_detail}<//>`],
        ["attempts", data.item?.attempts],
        ["direction", message.direction],
        ["from", html`<${Peer} id=${message.sender} />`],
        ["to", message.to ? html`<${Peer} id=${message.to} />` : "everybody in the channel"],
        ["channel", message.channel],
        ["work", message.work_id && html`<${WorkLink} id=${message.work_id} />`],
        ["effect on it", [message.outcome, message.reason].filter(Boolean).join(": ")],
        ["thread", message.thread_id && html`<bdi>${visible(message.thread_id)}</bdi>`],
        ["direct room", message.direct_id && html`<bdi>${visible(message.direct_id)}</bdi>`],
        [message.direction === "out" ? "sent" : "received", html`<${Ago} ms=${message.received_ms} />`],
        [
          "expires",
          typeof message.envelope.expires_at === "number" &&
            new Date(1000 * message.envelope.expires_at).toLocaleString(),
        ],
        ["sequence", message.seq],
      ]} />
      ${data.item && html`<${InboxActions} item=${data.item} done=${reload} />`}
    <//>
    <${Why} cases=${why} />
    <${Causes} causes=${data.causes} cause=${message.envelope.causation_id} caused=${data.caused} message=${message} />
    <${Envelope} raw=${data.raw} parsed=${message.envelope} />`;
}

/** What was loaded before and does not change: text and envelopes, the causes, and how far consequences were searched. */
class Known {
  /** @param {string} instance */
  constructor(instance) {
    this.instance = instance;
    /** @type {{text: string, causes: any[]} | null} */
    this.fixed = null;
    /** @type {Map<string, any>} */
    this.caused = new Map();
    this.through = 0;
  }

  /**
   * @param {string} id of a message, or its number in the quarantine
   * @returns {Promise<any>} `message` is null for one in the quarantine
   */
  async load(id) {
    const path = `/v1/messages/${encodeURIComponent(id)}`;
    const why = (await this.find(`/v1/trust/why/${encodeURIComponent(id)}`))?.cases ?? [];
    const refused = why.length > 0 && why.every((/** @type {any} */ one) => one.place === "quarantine");
    const answer = refused ? null : await this.text(path);
    if (answer === null) {
      if (why.length === 0)
        throw new ApiError(404, "not_found", `no message ${id} is stored here`, "retention may have removed it");
      const { quarantined } = await call(this.instance, "GET", withQuery("/v1/quarantine", { limit: 1000 }));
      return {
        message: null,
        why,
        quarantined: quarantined.filter((/** @type {any} */ one) => String(one.id) === id || one.message_id === id),
      };
    }
    const message = JSON.parse(answer);
    this.fixed ??= {
      text: (await call(this.instance, "GET", `${path}/text`)).text,
      causes: await this.causesOf(message),
    };
    await this.search(message);
    const inbox =
      message.delivery && message.direction === "in"
        ? await call(
            this.instance,
            "GET",
            withQuery("/v1/inbox", {
              state: ["ready", "leased", "acked", "dead"],
              since: message.seq - 1 || null,
              limit: 1,
            }),
          )
        : { items: [] };
    return {
      message,
      why,
      raw: rawEnvelope(answer),
      item: inbox.items.find((/** @type {any} */ one) => one.seq === message.seq) ?? null,
      ...this.fixed,
      caused: [...this.caused.values()],
    };
  }

  /** @param {string} path */
  async text(path) {
    try {
      return await (await request(`/instances/${encodeURIComponent(this.instance)}${path}`)).text();
    } catch (error) {
      if (error instanceof ApiError && error.status === 404) return null;
      throw error;
    }
  }

  /** @param {string} path */
  async find(path) {
    const found = await this.text(path);
    return found === null ? null : JSON.parse(found);
  }

  /** The chain of causes, the nearest first. @param {any} message */
  async causesOf(message) {
    const found = [];
    const seen = new Set([message.id]);
    for (
      let id = message.envelope.causation_id;
      typeof id === "string" && !seen.has(id) && found.length < CAUSES;
      id = found.at(-1)?.envelope.causation_id
    ) {
      seen.add(id);
      const cause = await this.find(`/v1/messages/${encodeURIComponent(id)}`);
      if (cause === null) break;
      found.push(cause);
    }
    return found;
  }

  /** Look for consequences in what was stored since the last look. @param {any} message */
  async search(message) {
    this.through ||= message.seq;
    const page = await call(
      this.instance,
      "GET",
      withQuery("/v1/messages", { caused_by: message.id, since: this.through, limit: PAGE }),
    );
    for (const one of page.messages) this.caused.set(one.id, one);
    this.through = page.next_since;
  }
}

/** The envelope as it is in the answer, not as it is read from there. @param {string} answer of GET /v1/messages/{id} */
function rawEnvelope(answer) {
  const start = answer.indexOf(',"envelope":') + ',"envelope":'.length; // quotes in a text have a backslash before them
  return answer.slice(start, answer.lastIndexOf(',"damaged":'));
}

/** @param {{cases: any[]}} props */
function Why({ cases }) {
  return html`${cases.map(
    (
      one,
      at,
    ) => html`<${Panel} key=${at} title=${one.accepted ? "Why it was accepted" : "Why it was refused"} kind=${one.accepted ? "" : "asks"} aside=${html`<span class="muted">${one.place === "stored" ? "as stored" : "in the quarantine"}</span>`}>
    <${Facts} of=${[
      ["recorded as", visible(one.recorded)],
      ["because", one.detail && html`<${Said}>${one.detail}<//>`],
      ["by the rules now", html`<${State} of=${one.trust} />`],
      ["decided by", one.decided_by],
      ["signed by", one.key_id ? html`<code>${visible(one.key_id)}</code>` : "no key"],
      ["sender", one.sender && html`<${Peer} id=${one.sender} />`],
    ]} />
    ${one.note && html`<p class="muted">${visible(one.note)}</p>`}
    <${Table} caption="Checks, as the rules are now" columns=${["Check", "Passed", "Detail"]} none="It was not checked." rows=${one.checks.map(
      (/** @type {any} */ check) => ({
        key: check.check,
        kind: check.passed ? "" : "failed",
        cells: [check.check, check.passed ? "✓ yes" : "✕ no", html`<bdi>${visible(check.detail)}</bdi>`],
      }),
    )} />
  <//>`,
  )}`;
}

/** @param {{causes: any[], cause: unknown, caused: any[], message: any}} props */
function Causes({ causes, cause, caused, message }) {
  const lost = (causes.at(-1)?.envelope ?? { causation_id: cause }).causation_id;
  const reply = message.envelope.reply_to;
  return html`<${Panel} title="Causes and consequences">
    <ol class="items">
      ${typeof lost === "string" && html`<li class="muted"><bdi>${visible(lost)}</bdi> is not stored here</li>`}
      ${[...causes].reverse().map((one) => html`<${Linked} key=${one.id} of=${one} />`)}
      <li class="here"><strong>this message</strong>${typeof reply === "string" && html` <span class="muted">reply to <${MessageLink} id=${reply} /></span>`}</li>
      ${caused.map((one) => html`<${Linked} key=${one.id} of=${one} after />`)}
      ${caused.length === 0 && html`<li class="none">Nothing names it as its cause.</li>`}
    </ol>
  <//>`;
}

/** @param {{of: any, after?: boolean}} props */
function Linked({ of, after = false }) {
  const { what, text } = told(of);
  return html`<li class=${after ? "after" : ""}><${MessageLink} id=${of.id}>${visible(what)}<//> <span class="muted">${of.direction === "out" ? "to" : "from"}</span> <${Peer} id=${of.direction === "out" ? (of.to ?? "everybody") : of.sender} />
    ${" "}<${Ago} ms=${of.received_ms} />${of.work_id && html` <${WorkLink} id=${of.work_id} />`}${text && html` <${Said} by=${of.sender}>${text.slice(0, 200)}<//>`}</li>`;
}

/** @param {{raw: string, parsed: unknown}} props */
function Envelope({ raw, parsed }) {
  const [indented, setIndented] = useState(true);
  const [all, setAll] = useState(false);
  const text = indented ? JSON.stringify(parsed, null, 2) : raw;
  const length = new TextEncoder().encode(raw).length;
  return html`<${Panel} title="Envelope" aside=${html`<span class="muted">${size(length)}</span>
      <label><input type="checkbox" checked=${!indented} onChange=${() => setIndented(!indented)} /> byte for byte</label><${Copy} text=${raw} about=" the envelope" />`}>
    <pre class="said" tabindex="0">${visible(all ? text : text.slice(0, SHOWN))}</pre>
    ${!all && text.length > SHOWN && html`<button type="button" onClick=${() => setAll(true)}>Show all ${text.length.toLocaleString()} characters</button>`}
  <//>`;
}

/** @param {{quarantined: any[]}} props */
function Refused({ quarantined }) {
  return html`${quarantined.map(
    (
      one,
    ) => html`<${Panel} key=${one.id} title="Envelope" aside=${html`<span class="muted">number ${one.id} in the quarantine, ${size(one.size)}</span><${Copy} text=${one.raw} about=" the envelope" />`}>
    <${Facts} of=${[["reason", one.reason], ["because", html`<${Said}>${one.detail}<//>`], ["from", one.sender && html`<${Peer} id=${one.sender} />`], ["id", one.message_id && html`<bdi>${visible(one.message_id)}</bdi>`], ["subject", html`<bdi>${visible(one.subject)}</bdi>`], ["received", html`<${Ago} ms=${one.received_ms} />`]]} />
    <pre class="said" tabindex="0">${visible(one.raw)}</pre><//>`,
  )}`;
}
