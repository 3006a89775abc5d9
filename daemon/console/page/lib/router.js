// The URL of each screen: `#/INSTANCE/SCREEN/ID?QUERY`.

import { useEffect, useState } from "../vendor/preact-htm.js";

/** @typedef {{instance: string, screen: string, id: string, query: URLSearchParams}} Route */

/** @returns {Route} */
function current() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?", 2);
  const [instance = "", screen = "", ...id] = path.split("/").map(decode);
  return { instance, screen, id: id.join("/"), query: new URLSearchParams(query ?? "") };
}

/** @param {string} text */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/**
 * The URL of a screen.
 * @param {string} instance
 * @param {string} screen
 * @param {string} [id]
 * @param {Record<string, string>} [query] empty values are left out
 */
export function to(instance, screen, id = "", query = {}) {
  const path = [instance, screen, ...(id === "" ? [] : [id])].map(encodeURIComponent).join("/");
  const pairs = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== ""));
  return `#/${path}${pairs.size === 0 ? "" : `?${pairs}`}`;
}

/** The route, which follows the URL. */
export function useRoute() {
  const [route, setRoute] = useState(current);
  useEffect(() => {
    const follow = () => setRoute(current());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return route;
}

/**
 * Change the query of the screen in place, as filters do.
 * @param {Route} route
 * @param {Record<string, string>} changed
 */
export function refine(route, changed) {
  const query = { ...Object.fromEntries(route.query), ...changed };
  history.replaceState(null, "", to(route.instance, route.screen, route.id, query));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
