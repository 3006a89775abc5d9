// Values as people read them.

/**
 * A text of a peer without characters that act: controls, and those that turn the direction of what follows, are shown as codes.
 * @param {string} text
 */
export function visible(text) {
  return text.replace(
    /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff\ufff9-\ufffb]|[\ud800-\udfff](?![\udc00-\udfff])|\udb40[\udc00-\udc7f]/g,
    (one) => {
      const code = /** @type {number} */ (one.codePointAt(0)).toString(16).toUpperCase().padStart(4, "0");
      return `⟨U+${code}⟩`;
    },
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

/** @param {number} ms Unix time */
export function clock(ms) {
  return new Date(ms).toLocaleTimeString(undefined, { hour12: false });
}

/** @param {number} ms Unix time */
export function date(ms) {
  return new Date(ms).toLocaleString(undefined, { hour12: false });
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
