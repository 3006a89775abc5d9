// The keyboard: `g` and a letter go to a screen, `j` and `k` through the rows of the list, `/` to the filter, `?` shows the keys.

import { SCREENS } from "../screens/index.js";
import { to } from "./router.js";

/** Listen until the returned function is called. @param {string} instance */
export function keys(instance) {
  let goes = false;
  /** @param {KeyboardEvent} event */
  const pressed = (event) => {
    const target = /** @type {HTMLElement} */ (event.target);
    if (event.ctrlKey || event.metaKey || event.altKey || target.closest("input, textarea, select, dialog")) return;
    const screen = goes ? SCREENS.find((one) => one.key === event.key) : undefined;
    goes = event.key === "g" && !goes;
    if (screen) location.hash = to(instance, screen.name);
    else if (event.key === "j" || event.key === "k") step(event.key === "j" ? 1 : -1);
    else if (event.key === "Enter" && target.matches("tr[data-href]"))
      location.hash = /** @type {string} */ (target.dataset.href);
    else if (event.key === "/")
      /** @type {HTMLElement | null} */ (document.querySelector("main input[type=search]"))?.focus();
    else if (event.key === "?") show();
    else return;
    event.preventDefault();
  };
  addEventListener("keydown", pressed);
  return () => removeEventListener("keydown", pressed);
}

/** @param {1 | -1} by */
function step(by) {
  const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll("main tr[data-href]")]);
  const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement?.closest("tr")));
  const next = rows[Math.min(Math.max(at + by, 0), rows.length - 1)];
  if (next) {
    next.tabIndex = -1;
    next.focus();
  }
}

function show() {
  const dialog = document.createElement("dialog");
  dialog.setAttribute("aria-label", "Keys");
  const list = document.createElement("dl");
  const rows = [
    ...SCREENS.filter((one) => one.key).map((one) => [`g ${one.key}`, one.title]),
    ["j k", "next and previous row"],
    ["Enter", "open the row"],
    ["/", "filter"],
    ["Esc", "close this"],
  ];
  for (const [key, what] of rows) {
    const term = document.createElement("dt");
    const said = document.createElement("dd");
    term.textContent = key;
    said.textContent = what;
    list.append(term, said);
  }
  dialog.append(list);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
