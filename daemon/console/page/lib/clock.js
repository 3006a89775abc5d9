// The daemon's clock, by which all times of the API are. The browser may run on another machine, whose clock differs.

import { call } from "./session.js";

/** Milliseconds by which the daemon's clock was ahead of the browser's when it last told its time: all instances share one machine. */
let ahead = 0;

/** The daemon's time in Unix milliseconds. */
export function now() {
  return Date.now() + ahead;
}

/**
 * The status of a daemon, with `ahead_ms`: how far its clock was ahead of the browser's when the answer came. Raises ApiError.
 * @param {string} instance
 * @returns {Promise<any>}
 */
export async function statusOf(instance) {
  const status = await call(instance, "GET", "/v1/status");
  ahead = status.now_ms - Date.now();
  return { ...status, ahead_ms: ahead };
}
