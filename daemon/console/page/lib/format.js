// Values as people read them.

// What moves, hides or reorders text, but for line ends, tabs, and joiners in scripts and emoji that need them; lone surrogates, too.
const ACTING =
  /[\0-\x08\v-\x1f\x7f-\x9f\u2028\u2029\ufff9-\ufffb]|(?<!\ufe0f|[\u0590-\u109f\u1780-\u18af\u2190-\u3299\ua800-\uabff\ufb1d-\ufdff\ufe70-\ufefc\u{10a00}-\u{11fff}\u{1f000}-\u{1faff}])[\u200c\u200d]|(?![\u200c\u200d]|\ufe0e|\ufe0f)\p{Default_Ignorable_Code_Point}|\p{Surrogate}/gu;

/**
 * A text of a peer without characters that act: they are shown as codes.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(
    ACTING,
    (one) => `⟨U+${/** @type {number} */ (one.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0")}⟩`,
  );
}

/** @param {number} ms since then */
export function age(ms) {
  const s = Math.max(0, ms / 1000);
  if (s < 10) return `${s.toFixed(1)} s`;
  if (s < 120) return `${Math.round(s)} s`;
  if (s < 7_200) return `${Math.round(s / 60)} min`;
  if (s < 172_800) return `${Math.round(s / 3_600)} h`;
  return `${Math.round(s / 86_400)} d`;
}

// made once: that takes a millisecond
const TIME = new Intl.DateTimeFormat(undefined, { timeStyle: "medium", hour12: false });
const DATE = new Intl.DateTimeFormat(undefined, {
  year: "numeric",
  month: "numeric",
  day: "numeric",
  hour: "numeric",
  minute: "numeric",
  second: "numeric",
  hour12: false,
});

/** @param {number} ms Unix time */
export function clock(ms) {
  return TIME.format(ms);
}

/** @param {number} ms Unix time */
export function date(ms) {
  return DATE.format(ms);
}

/** @param {number} bytes */
export function size(bytes) {
  const units = ["B", "KiB", "MiB", "GiB"];
  let at = 0;
  for (; bytes >= 1024 && at < units.length - 1; at++) bytes /= 1024;
  return `${at === 0 ? bytes : bytes.toFixed(1)} ${units[at]}`;
}

/**
 * The end of an id, which tells it from others and which commands find.
 * @param {string} id
 */
export function shortId(id) {
  return id.length > 14 ? `…${id.slice(-12)}` : id;
}

/**
 * One word or text for a POSIX shell.
 * @param {string} text
 */
export function shell(text) {
  if (/^[\w@%+=:,./-]+$/.test(text)) return text;
  if (!/[\u0000-\u001f\u007f]/.test(text)) return `'${text.replaceAll("'", `'\\''`)}'`;
  const escaped = text
    .replace(/[\\']/g, "\\$&")
    .replace(/[\u0000-\u001f\u007f]/g, (one) => `\\x${one.charCodeAt(0).toString(16).padStart(2, "0")}`);
  return `$'${escaped}'`;
}

/**
 * How many works are open at a peer, and how many its workers carry out at a time.
 * @param {{open_works: number | null, takes: number | null}} peer
 */
export function workload({ open_works, takes }) {
  if (takes === null) return "";
  return takes ? `${open_works} open, ${takes} at a time` : `${open_works} open, no worker`;
}
