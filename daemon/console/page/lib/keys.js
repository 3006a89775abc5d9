// The keyboard: `g` and a letter go to a screen, `j` and `k` through the rows of the list, `/` to the filter, `?` shows the keys.

import { SCREENS } from "../screens/index.js";
import { to } from "./router.js";

const KEY = "aghbus.keys";

/** Listen until the returned function is called. @param {string} instance */
export function keys(instance) {
  let goes = false;
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog")) return;
    if (off() && event.key !== "Enter") return;
    const screen = goes ? SCREENS.find((one) => one.key === event.key) : undefined;
    goes = event.key === "g" && !goes;
    if (screen) location.hash = to(instance, screen.name);
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else if (event.key === "Enter" && target.matches("[data-href]"))
      location.hash = /** @type {string} */ (target.dataset.href);
    else if (event.key === "/")
      /** @type {HTMLElement | null} */ (document.querySelector("main input[type=search]"))?.focus();
    else if (event.key === "?") showKeys();
    else return;
    event.preventDefault();
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}

/** @param {1 | -1} by */
function step(by) {
  const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main [data-href]")]);
  const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement?.closest("[data-href]")));
  const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  if (next) {
    next.tabIndex = -1;
    next.focus();
  }
}

/** A dialog with the keys, and whether they are on: programs that turn speech into letters would press them. */
export function showKeys() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-labelledby", "keys");
  const rows = [
    ...SCREENS.filter((one) => one.key).map((one) => [`g ${one.key}`, one.title]),
    ["j k", "next and previous row"],
    ["Enter", "open the row"],
    ["/", "filter"],
    ["?", "show the keys"],
    ["Esc", "close this"],
  ];
  const list = element("dl");
  for (const [key, what] of rows) list.append(element("dt", key), element("dd", what));
  const heading = element("h2", "Keys");
  heading.id = "keys";
  const box = document.createElement("input");
  box.type = "checkbox";
  box.checked = !off();
  box.addEventListener("change", () => localStorage.setItem(KEY, box.checked ? "on" : "off"));
  const label = element("label", box, " letters and signs act in this browser");
  label.className = "tick";
  const close = element("button", "Close");
  close.autofocus = true;
  close.addEventListener("click", () => dialog.close());
  dialog.append(heading, list, label, close);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}

/** @param {string} name @param {(Node | string)[]} children */
function element(name, ...children) {
  const made = document.createElement(name);
  made.append(...children);
  return made;
}

/** Whether this browser wants no keys of one letter. */
function off() {
  return localStorage.getItem(KEY) === "off";
}
