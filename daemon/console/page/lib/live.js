// What changes: one event stream for each instance that a screen shows, and hooks that load again when something happened.

import { useCallback, useEffect, useRef, useState } from "../vendor/preact-htm.js";
import { statusOf } from "./clock.js";
import { ApiError, request } from "./session.js";

/** @typedef {import("./api.js").Event} Event */
/** @typedef {(event: Event | null) => void} Listener null: events were missed */

const AGAIN_MS = 10_000; // what no event tells, such as delivery states, is loaded again
const HIDDEN_MS = 60_000; // the same in a tab that is not seen
const PACE_MS = 400; // between two loads after events
const FIRST_PAUSE_MS = 500;
const LAST_PAUSE_MS = 10_000;

/** @type {Map<string, Stream>} */
const streams = new Map();

/**
 * Get each event of an instance from now on. Returns a function that ends it.
 * @param {string} instance
 * @param {Listener} listener
 */
export function listen(instance, listener) {
  let stream = streams.get(instance);
  if (stream === undefined) {
    stream = new Stream(instance);
    streams.set(instance, stream);
  }
  stream.listeners.add(listener);
  return () => {
    stream.listeners.delete(listener);
    if (stream.listeners.size === 0) {
      stream.close();
      streams.delete(instance);
    }
  };
}

class Stream {
  /** @param {string} instance */
  constructor(instance) {
    this.instance = instance;
    /** @type {Set<Listener>} */
    this.listeners = new Set();
    this.controller = new AbortController();
    void this.run();
  }

  close() {
    this.controller.abort();
  }

  async run() {
    const { signal } = this.controller;
    let since = null;
    let pause = FIRST_PAUSE_MS;
    while (!signal.aborted) {
      await seen();
      const connection = whileSeen(signal);
      try {
        if (since === null) since = (await statusOf(this.instance)).store.last_seq;
        for await (const [type, data] of frames(this.instance, `/v1/events?since=${since}`, connection)) {
          pause = FIRST_PAUSE_MS;
          if (type === "envelope") since = Math.max(since, data.seq);
          this.tell(type === "envelope" ? data : null);
        }
      } catch (error) {
        if (signal.aborted || (error instanceof ApiError && error.status === 401)) return;
        if (connection.aborted) since = null; // what was missed meanwhile may be much, and is loaded anyway
      }
      await new Promise((done) => setTimeout(done, pause));
      pause = Math.min(2 * pause, LAST_PAUSE_MS);
      this.tell(null);
    }
  }

  /** @param {Event | null} event */
  tell(event) {
    for (const listener of [...this.listeners]) listener(event);
  }
}

/** Wait until somebody sees the tab. */
export async function seen() {
  while (document.hidden)
    await new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

/**
 * A signal for a stream that ends when the tab is hidden: a browser keeps only six connections to an origin, for all tabs.
 * @param {AbortSignal} signal
 */
export function whileSeen(signal) {
  const hidden = new AbortController();
  document.addEventListener("visibilitychange", () => hidden.abort(), { once: true, signal });
  return AbortSignal.any([signal, hidden.signal]);
}

/**
 * The server-sent events of a stream of the API, as pairs of type and data.
 * @param {string} instance
 * @param {string} path
 * @param {AbortSignal} signal
 * @param {() => void} [opened] called when the daemon has answered
 * @returns {AsyncGenerator<[string, any]>}
 */
export async function* frames(instance, path, signal, opened) {
  const response = await request(`/instances/${encodeURIComponent(instance)}${path}`, { signal });
  opened?.();
  const reader = /** @type {ReadableStream<Uint8Array>} */ (response.body).getReader();
  const decoder = new TextDecoder();
  let buffer = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    buffer += decoder.decode(value, { stream: true });
    const parts = buffer.split("\n\n");
    buffer = /** @type {string} */ (parts.pop());
    for (const part of parts) {
      const fields = Object.fromEntries(
        part.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]),
      );
      if (fields.event !== undefined && fields.data !== undefined) yield [fields.event, JSON.parse(fields.data)];
    }
  }
}

/**
 * @template T
 * @typedef {{data: T | null, error: ApiError | null, reload: () => void}} Loaded
 */

/**
 * What `load` returns: at once, after events that matter, and every few seconds. Keeps the last data over errors, and until
 * those for other inputs have come.
 * @template T
 * @param {string} instance whose events matter
 * @param {() => Promise<T>} load
 * @param {unknown[]} inputs of `load`
 * @param {(event: Event) => boolean} [matters] all do without it
 * @returns {Loaded<T>}
 */
export function useLive(instance, load, inputs, matters = () => true) {
  const [state, setState] = useState(
    /** @type {{data: T | null, error: ApiError | null}} */ ({ data: null, error: null }),
  );
  const latest = useRef(load);
  latest.current = load;
  const again = useRef(() => {});
  const of = useRef(instance);
  useEffect(() => {
    let over = false;
    let loading = false;
    let wanted = false;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    if (of.current !== instance) setState({ data: null, error: null });
    of.current = instance;

    const run = async () => {
      if (loading) {
        wanted = true;
        return;
      }
      loading = true;
      wanted = false;
      clearTimeout(timer);
      try {
        const data = await latest.current();
        if (!over) setState({ data, error: null });
      } catch (error) {
        if (!over && error instanceof ApiError) setState((before) => ({ data: before.data, error }));
        else if (!over) throw error;
      } finally {
        loading = false;
        if (!over) timer = setTimeout(run, wanted ? PACE_MS : document.hidden ? HIDDEN_MS : AGAIN_MS);
      }
    };

    const soon = () => {
      wanted = true;
      if (loading) return;
      clearTimeout(timer);
      timer = setTimeout(run, PACE_MS);
    };
    again.current = run;
    void run();
    const unlisten = listen(instance, (event) => {
      if (event === null || matters(event)) soon();
    });
    const seen = () => document.hidden || run();
    document.addEventListener("visibilitychange", seen);
    return () => {
      over = true;
      clearTimeout(timer);
      unlisten();
      document.removeEventListener("visibilitychange", seen);
    };
  }, [instance, ...inputs]);
  return { ...state, reload: useCallback(() => again.current(), []) };
}
