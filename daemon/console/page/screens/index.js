// The screens: the name in the URL, the title, the key after `g`, and what waits there.

import { Chains } from "./chains.js";
import { Live } from "./live.js";
import { Open } from "./open.js";
import { Overview } from "./overview.js";
import { Work } from "./work.js";

/**
 * @typedef {object} Screen
 * @property {string} name in the URL
 * @property {string} title
 * @property {string} [key] after `g`; a screen without one is not in the navigation
 * @property {(props: {instance: string, route: import("../lib/router.js").Route}) => any} view
 * @property {(status: any) => number | undefined} [count] of things that wait there
 */

/** @type {Screen[]} */
export const SCREENS = [
  { name: "overview", title: "Overview", key: "o", view: Overview },
  { name: "chains", title: "Chains", key: "c", view: Chains },
  { name: "live", title: "Live", key: "l", view: Live },
  { name: "open", title: "Open a work", key: "w", view: Open },
  { name: "works", title: "Work", view: Work },
];
