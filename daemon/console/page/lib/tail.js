// The live tail of an instance's messages: a stream of its own that can pause, and goes on by sequence without loss.

import { useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { statusOf } from "./clock.js";
import { told } from "./ladder.js";
import { frames, seen, whileSeen } from "./live.js";
import { ApiError, withQuery } from "./session.js";

/** @typedef {import("./api.js").Event} Event */
/** @typedef {{kind: string, direction: string, peer: string, work: string, text: string}} Filters all but `text` are the daemon's */
/** @typedef {{rows: Event[], dropped: number, away: boolean, error: ApiError | null}} Tail newest first */

const KEEP = 500; // rows
const BEGIN = 200; // messages before the newest one, of which those that fit are shown at first
const DRAW_MS = 250; // between two drawings
const FIRST_PAUSE_MS = 500;
const LAST_PAUSE_MS = 10_000;

/**
 * @param {string} instance
 * @param {Filters} filters
 * @param {boolean} paused
 * @returns {Tail}
 */
export function useTail(instance, filters, paused) {
  const [tail, setTail] = useState(/** @type {Tail} */ ({ rows: [], dropped: 0, away: false, error: null }));
  const since = useRef(/** @type {number | null} */ (null));
  const inputs = [instance, filters.kind, filters.direction, filters.peer, filters.work, filters.text];
  useEffect(() => {
    since.current = null;
    setTail({ rows: [], dropped: 0, away: false, error: null });
  }, inputs);
  useEffect(() => {
    if (paused) return;
    const controller = new AbortController();
    /** @type {Event[]} */
    let came = [];
    const draw = () => {
      if (came.length === 0) return;
      const added = came.reverse();
      came = [];
      setTail((before) => {
        const rows = [...added, ...before.rows];
        return { ...before, rows: rows.slice(0, KEEP), dropped: before.dropped + Math.max(0, rows.length - KEEP) };
      });
    };
    const drawing = setInterval(draw, DRAW_MS);
    void follow(instance, filters, since, controller.signal, {
      event: (event) => {
        if (event.type === "gap" || contains(event, filters.text)) came.push(event);
        if (came.length >= KEEP) draw();
      },
      state: (away, error) => setTail((before) => ({ ...before, away, error })),
    });
    return () => {
      controller.abort();
      clearInterval(drawing);
      draw();
    };
  }, [...inputs, paused]);
  return tail;
}

/**
 * Read events until it is aborted; `since` is always the last one that was read.
 * @param {string} instance
 * @param {Filters} filters
 * @param {{current: number | null}} since
 * @param {AbortSignal} signal
 * @param {{event: (event: Event) => void, state: (away: boolean, error: ApiError | null) => void}} to
 */
async function follow(instance, filters, since, signal, to) {
  const { text: _, ...asked } = filters;
  let pause = FIRST_PAUSE_MS;
  while (!signal.aborted) {
    await seen();
    const connection = whileSeen(signal);
    try {
      since.current ??= Math.max(0, (await statusOf(instance)).store.last_seq - BEGIN);
      const path = withQuery("/v1/events", { ...asked, since: since.current });
      for await (const [type, event] of frames(instance, path, connection, () => to.state(false, null))) {
        pause = FIRST_PAUSE_MS;
        if (type !== "envelope" && type !== "gap") continue;
        since.current = Math.max(since.current, event.seq);
        to.event(event);
      }
    } catch (error) {
      if (signal.aborted) return;
      if (connection.aborted) continue;
      if (!(error instanceof ApiError)) throw error;
      const lasting = error.status >= 400 && error.status < 500;
      to.state(!lasting, error);
      if (lasting) return;
    }
    await new Promise((done) => setTimeout(done, pause));
    pause = Math.min(2 * pause, LAST_PAUSE_MS);
  }
}

/**
 * @param {Event} event
 * @param {string} text
 */
function contains(event, text) {
  if (text === "" || !event.message) return text === "";
  const said = `${told(event.message).what} ${JSON.stringify(event.message.envelope)}`;
  return said.toLowerCase().includes(text.toLowerCase());
}
