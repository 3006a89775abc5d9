// The session of this tab: a ticket from the URL is exchanged for a token, which stays in sessionStorage.

const KEY = "aghbus.console";

/** @typedef {{token: string, instance: string, write: boolean}} Session */

/** An error that the daemon or the console answered with, or that it cannot be reached (status 0). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {string} code
   * @param {string} message
   * @param {string} hint
   */
  constructor(status, code, message, hint) {
    super(message);
    this.status = status;
    this.code = code;
    this.hint = hint;
  }
}

/** @returns {Session | null} */
export function session() {
  const stored = sessionStorage.getItem(KEY);
  return stored === null ? null : JSON.parse(stored);
}

/** Exchange the ticket in the fragment, if there is one, and take it out of the URL and the history. */
export async function begin() {
  const given = /^#ticket=([\w-]+)$/.exec(location.hash);
  if (given === null) return;
  history.replaceState(null, "", "#/");
  const response = await fetch("/session", {
    method: "POST",
    headers: { "content-type": "application/json" },
    body: JSON.stringify({ ticket: given[1] }),
  });
  if (!response.ok) throw await errorOf(response);
  sessionStorage.setItem(KEY, JSON.stringify(await response.json()));
}

/** Forget the session of this tab. */
export function end() {
  sessionStorage.removeItem(KEY);
}

/**
 * The response to a request of the console. Raises ApiError.
 * @param {string} path
 * @param {RequestInit} [options]
 * @returns {Promise<Response>}
 */
export async function request(path, options = {}) {
  const headers = { ...options.headers, authorization: `Bearer ${session()?.token ?? ""}` };
  let response;
  try {
    response = await fetch(path, { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "the daemon cannot be reached", "this page goes on when it is back");
  }
  if (!response.ok) throw await errorOf(response);
  return response;
}

/** @type {Map<string, Promise<any>>} */
const reading = new Map();

/**
 * The answer of the API of an instance, one for all that read the same at the same time. Raises ApiError.
 * @param {string} instance
 * @param {string} method
 * @param {string} path such as `/v1/works`
 * @param {unknown} [body]
 * @returns {Promise<any>}
 */
export async function call(instance, method, path, body) {
  const url = `/instances/${encodeURIComponent(instance)}${path}`;
  if (method !== "GET") {
    reading.clear(); // what begins from now on has the change
    const headers = { "content-type": "application/json" };
    return (await request(url, { method, headers, body: JSON.stringify(body ?? {}) })).json();
  }
  const known = reading.get(url);
  if (known !== undefined) return known;
  const answer = request(url).then((response) => response.json());
  reading.set(url, answer);
  try {
    return await answer;
  } finally {
    if (reading.get(url) === answer) reading.delete(url);
  }
}

/**
 * A path with a query; values that are empty are left out.
 * @param {string} path
 * @param {Record<string, string | number | boolean | string[] | null | undefined>} query
 */
export function withQuery(path, query) {
  const pairs = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    for (const one of Array.isArray(value) ? value : [value]) {
      if (one !== null && one !== undefined && one !== "" && one !== false) pairs.append(name, String(one));
    }
  }
  const text = pairs.toString();
  return text === "" ? path : `${path}?${text}`;
}

/** @param {Response} response */
async function errorOf(response) {
  try {
    const { code, message, hint } = await response.json();
    return new ApiError(response.status, code, message, hint);
  } catch {
    return new ApiError(response.status, "unexpected", `the daemon answered with ${response.status}`, "");
  }
}
