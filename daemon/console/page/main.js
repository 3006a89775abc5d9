// The page: its session, the list of instances, and the screen that the URL names.

import { html, render, useCallback, useContext, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { statusOf } from "./lib/clock.js";
import { keys, showKeys } from "./lib/keys.js";
import { useLive } from "./lib/live.js";
import { to, useRoute } from "./lib/router.js";
import { ApiError, begin, request, session } from "./lib/session.js";
import { Announce, Instance, Problem, Unseen, useTitle } from "./lib/ui.js";
import { SCREENS } from "./screens/index.js";
import { waiting } from "./screens/needs.js";

const THEMES = ["system", "light", "dark"];

function App() {
  const route = useRoute();
  const own = session()?.instance ?? "";
  const instance = route.instance || own;
  const screen = SCREENS.find((one) => one.name === (route.screen || "overview"));
  const [said, setSaid] = useState(/** @type {any} */ (""));
  const [instances, setInstances] = useState(/** @type {{name: string, running: boolean}[]} */ ([]));
  const announce = useCallback((/** @type {any} */ what) => {
    setSaid("");
    setTimeout(() => setSaid(what), 50);
  }, []);
  const status = useLive(
    instance,
    () => statusOf(instance),
    [],
    () => false,
  );
  useEffect(() => {
    const look = async () => {
      try {
        setInstances((await (await request("/instances")).json()).instances);
      } catch (error) {
        if (!(error instanceof ApiError)) throw error;
      }
    };
    void look();
    const timer = setInterval(() => document.hidden || look(), 15_000);
    return () => clearInterval(timer);
  }, []);
  useEffect(() => keys(instance), [instance]);
  useEffect(() => {
    // on a narrow screen the menu has room for a part
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [screen]);
  const View = screen?.view;
  const body = useMemo(
    () =>
      View
        ? html`<${View} key=${`${instance}/${route.screen}/${route.id}`} instance=${instance} route=${route} />`
        : html`<${Unknown} />`,
    [View, instance, route],
  );
  const waits = waiting(status.data) ?? 0;
  const waited = useRef(/** @type {{instance: string, count: number} | null} */ (null));
  useEffect(() => {
    const before = waited.current;
    if (status.data === null) return;
    waited.current = { instance, count: waits };
    if (before?.instance === instance && waits > before.count)
      announce(`${waits} ${waits === 1 ? "thing waits" : "things wait"} for you`);
  }, [instance, status.data, waits]);
  return html`<${Instance.Provider} value=${instance}><${Announce.Provider} value=${announce}>
    <a class="skip" href="#main" onClick=${skip}>Skip to the content</a>
    <header class="top">
      <a class="brand" href=${to(instance, "overview")}><img src="/icon.svg" alt="" width="24" height="24" />aghbus</a>
      <label class="instance"><span class="unseen">Instance</span>
        <select value=${instance} onChange=${(/** @type {any} */ event) => (location.hash = to(event.target.value, screen?.name ?? "overview"))}>
          ${(instances.length ? instances : [{ name: instance, running: true }]).map((one) => html`<option key=${one.name} value=${one.name} disabled=${!one.running}>${one.name}${one.running ? "" : " (stopped)"}</option>`)}
        </select>
      </label>
      <${Health} status=${status} />
      <${Theme} />
    </header>
    <nav aria-label="Screens">
      ${SCREENS.filter((one) => one.key).map((one) => html`<a key=${one.name} href=${to(instance, one.name)} aria-current=${one === screen ? "page" : undefined} title=${`g ${one.key}`}>${one.title}<${Count} of=${one.count?.(status.data)} /></a>`)}
    </nav>
    <main id="main" tabindex="-1">${status.error?.status === 401 ? html`<${NoSession} />` : body}</main>
    <footer class="foot"><span aria-live="polite" aria-atomic="true" role="status">${said}</span>
      <span>${session()?.write ? "may act" : "read-only"} · <button type="button" class="small" onClick=${showKeys}><kbd>?</kbd> keys</button></span></footer>
  <//><//>`;
}

/** @param {any} event */
function skip(event) {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

/** @param {{of: number | undefined}} props */
function Count({ of }) {
  return of ? html`${" "}<span class="count">${of > 999 ? "999+" : of}<${Unseen}> waiting<//></span>` : null;
}

/** @param {{status: {data: any, error: ApiError | null}}} props */
function Health({ status: { data, error } }) {
  const announce = useContext(Announce);
  const away = error !== null && error.status !== 401;
  const wasAway = useRef(false);
  useEffect(() => {
    if (wasAway.current && !away) announce("the daemon is back");
    wasAway.current = away;
  }, [away]);
  if (away) return html`<span class="health down" role="alert">daemon away: ${error.message}</span>`;
  if (data === null) return html`<span class="health"></span>`;
  const worst = data.problems.length ? "warn" : data.ready ? "up" : "down";
  const text = data.ready
    ? data.problems.length
      ? `${data.problems.length} problem${data.problems.length > 1 ? "s" : ""}`
      : "ready"
    : "not ready";
  return html`<a class="health ${worst}" href=${to(data.name, "overview")}><span class="who">${data.peer_id}: </span>${text}</a>`;
}

function Theme() {
  const [theme, setTheme] = useState(() => localStorage.getItem("aghbus.theme") ?? "system");
  useEffect(() => {
    localStorage.setItem("aghbus.theme", theme);
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  return html`<label class="theme"><span class="unseen">Colours</span>
    <select value=${theme} onChange=${(/** @type {any} */ event) => setTheme(event.target.value)}>
      ${THEMES.map((one) => html`<option key=${one} value=${one}>${one}</option>`)}
    </select></label>`;
}

function Unknown() {
  const heading = useTitle("No such screen");
  return html`<h1 ref=${heading} tabindex="-1">There is no such screen</h1><p>The menu leads to those that there are.</p>`;
}

function NoSession() {
  const heading = useTitle("No session");
  return html`<section class="panel"><h1 ref=${heading} tabindex="-1">This tab has no session</h1>
    <p>A session belongs to one tab, and ends after 15 minutes without use. Open a new one:</p>
    <pre>aghctl console</pre></section>`;
}

/** @param {{error: ApiError}} props */
function NotOpened({ error }) {
  const heading = useTitle("Not opened");
  return html`<section class="panel"><h1 ref=${heading} tabindex="-1">The console did not open</h1><${Problem} error=${error} />
    <p>Tickets open one tab, within minutes. Get a new one:</p><pre>aghctl console</pre></section>`;
}

const app = /** @type {Element} */ (document.getElementById("app"));
try {
  await begin();
  app.textContent = "";
  render(session() === null ? html`<main><${NoSession} /></main>` : html`<${App} />`, app);
} catch (error) {
  if (!(error instanceof ApiError)) throw error;
  app.textContent = "";
  render(html`<main><${NotOpened} error=${error} /></main>`, app);
}
