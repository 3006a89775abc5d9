// The drawing of a run: SVG with a link for each node. Everything in it is also in the table of visits.

import { html } from "../vendor/preact-htm.js";
import { visible } from "../lib/format.js";
import { sign } from "../lib/ui.js";

const WIDTH = 190;
const HEIGHT = 54;
const GAP = 28; // between the nodes of a row
const DROP = 44; // between rows
const SIDE = 44; // for edges that lead back
const LETTERS = 22;

/** @typedef {import("../lib/graph.js").Graph} Graph */
/** @typedef {import("../lib/graph.js").Placed} Placed */
/** @typedef {import("../lib/api.js").ChainStep} Step */

/**
 * @param {{graph: Graph, history: Step[], chosen: string, link: (name: string) => string}} props
 */
export function GraphView({ graph, history, chosen, link }) {
  const width = graph.columns * (WIDTH + GAP) - GAP + 2 * SIDE;
  const height = graph.rows * (HEIGHT + DROP) - DROP + 4;
  const at = new Map(
    graph.nodes.map(({ name, row, column }) => [
      name,
      { x: SIDE + column * (WIDTH + GAP), y: 2 + row * (HEIGHT + DROP) },
    ]),
  );
  const taken = takenIn(history);
  return html`<div class="scroll"><svg class="graph" viewBox=${`0 0 ${width} ${height}`} width=${width} height=${height} role="group" aria-label="Nodes of the chain">
    <defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="9" markerHeight="9" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0 8 4 0 8z" /></marker></defs>
    ${graph.edges.map((edge, index) => {
      const from = /** @type {{x: number, y: number}} */ (at.get(edge.from));
      const end = /** @type {{x: number, y: number}} */ (at.get(edge.to));
      const kind = `edge ${taken(edge) ? "taken" : ""} ${edge.label ? "asked" : ""}`;
      return html`<path key=${index} class=${kind} d=${edge.back ? backwards(from, end, width) : forwards(from, end)} marker-end="url(#arrow)"><title>${visible(`${edge.from} → ${edge.to}${edge.label && `: ${edge.label}`}`)}</title></path>`;
    })}
    ${graph.nodes.map((node) => {
      const { x, y } = /** @type {{x: number, y: number}} */ (at.get(node.name));
      const visits = history.filter((step) => step.node === node.name);
      const last = visits.at(-1);
      const state = last?.work_state ?? "not visited";
      const times = visits.length > 1 ? `, ${visits.length} visits` : "";
      return html`<a key=${node.name} href=${link(node.name)} class="node ${state.replaceAll("_", "-").replaceAll(" ", "-")}" aria-current=${node.name === chosen ? "true" : undefined} aria-label=${`${visible(node.name)}: ${state.replaceAll("_", " ")}${times}`}>
        <rect x=${x} y=${y} width=${WIDTH} height=${HEIGHT} rx="8" />
        <text class="name" x=${x + 12} y=${y + 22}>${short(node.name)}</text>
        <text x=${x + 12} y=${y + 42}>${sign(state)} ${state.replaceAll("_", " ")}${times}</text>
      </a>`;
    })}
  </svg></div>`;
}

/**
 * Whether the run went along an edge.
 * @param {Step[]} history
 * @returns {(edge: import("../lib/graph.js").Edge) => boolean}
 */
function takenIn(history) {
  /** @type {Map<string, string>} */
  const last = new Map();
  const visited = new Set(history.map((step) => step.node));
  const went = new Set();
  for (const step of history) {
    went.add(JSON.stringify([last.get(step.branch), step.node]));
    last.set(step.branch, step.node);
  }
  return ({ from, to, joins }) => (joins ? visited.has(from) && visited.has(to) : went.has(JSON.stringify([from, to])));
}

/** @param {string} text */
function short(text) {
  const shown = visible(text);
  return shown.length > LETTERS ? `${shown.slice(0, LETTERS - 1)}…` : shown;
}

/**
 * @param {{x: number, y: number}} from
 * @param {{x: number, y: number}} end
 */
function forwards(from, end) {
  const [x, y, toX, toY] = [from.x + WIDTH / 2, from.y + HEIGHT, end.x + WIDTH / 2, end.y - 1];
  const bend = toY - DROP + 1;
  return `M${x} ${y}V${bend}C${x} ${bend + DROP / 2} ${toX} ${toY - DROP / 2} ${toX} ${toY}`;
}

/**
 * Around the nearer side.
 * @param {{x: number, y: number}} from
 * @param {{x: number, y: number}} end
 * @param {number} width
 */
function backwards(from, end, width) {
  const left = from.x + end.x + WIDTH < width;
  const [side, edge, gap] = left ? [0, 0, -1] : [width, WIDTH, 1];
  const [x, y, toX, toY] = [from.x + edge, from.y + HEIGHT / 2, end.x + edge + gap, end.y + HEIGHT / 2];
  if (from === end) return `M${x} ${y - 10}C${x + 34 * gap} ${y - 18} ${x + 34 * gap} ${y + 18} ${toX} ${y + 10}`;
  return `M${x} ${y}C${side} ${y} ${side} ${toY} ${toX} ${toY}`;
}
