// The messages of a work between two daemons, as rows of a ladder: repeats and idle gaps are folded, and what the other side saw is
// joined where its daemon is ours, too.

/** @typedef {import("./api.js").Message} Message */
/**
 * @typedef {object} Step
 * @property {Message} message as this side has it
 * @property {Message | null} theirs as the other side has it
 * @property {number} at Unix milliseconds
 * @property {number} times how many the like follow each other
 */
/** @typedef {{gap: number} | Step} Row */

const IDLE_MS = 10_000;

/**
 * @param {Message[]} ours oldest first
 * @param {Message[]} theirs of the other daemon; empty when it is not ours
 * @returns {Row[]}
 */
export function ladder(ours, theirs) {
  const others = new Map(theirs.map((one) => [one.id, one]));
  /** @type {Row[]} */
  const rows = [];
  let last = 0;
  for (const message of ours) {
    const before = rows.at(-1);
    if (before !== undefined && "message" in before && alike(before.message, message)) {
      before.times += 1;
      continue;
    }
    if (last && message.received_ms - last > IDLE_MS) rows.push({ gap: message.received_ms - last });
    rows.push({ message, theirs: others.get(message.id) ?? null, at: message.received_ms, times: 1 });
    last = message.received_ms;
  }
  return rows;
}

/**
 * Whether two messages say the same, as repeated reports do.
 * @param {Message} one
 * @param {Message} other
 */
function alike(one, other) {
  return (
    one.direction === other.direction &&
    one.kind === other.kind &&
    one.kind !== "say" &&
    summary(one) === summary(other)
  );
}

/**
 * What a message says in a few words: ours, then those of its sender.
 * @param {Message} message
 * @returns {{what: string, text: string}}
 */
export function told(message) {
  const body = /** @type {any} */ (message.envelope).body ?? {};
  const state = message.kind === "receipt" ? body.status : message.kind === "trace" ? body.state : "";
  const text = body.text ?? body.message ?? body.detail ?? body.summary ?? body.document?.summary ?? body.id ?? "";
  return { what: state ? `${message.kind}: ${state}` : message.kind, text: typeof text === "string" ? text : "" };
}

/** @param {Message} message */
function summary(message) {
  const { what, text } = told(message);
  return `${what}\n${text}`;
}
