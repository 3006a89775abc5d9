// A chain as a graph: which node comes after which, and where each is drawn.

/** @typedef {{from: string, to: string, label: string, joins: boolean, back: boolean}} Edge `label` is the condition */
/** @typedef {{name: string, row: number, column: number}} Placed */
/** @typedef {{nodes: Placed[], edges: Edge[], rows: number, columns: number}} Graph */

/**
 * @param {any} chain a chain file
 * @returns {Graph} rows from the start downwards; edges that lead back are marked
 */
export function graphOf(chain) {
  const names = Object.keys(chain.nodes);
  const starts = [chain.start].flat().filter((name) => name in chain.nodes);
  const followed = followedEdges(chain);
  ordered([...starts, ...names], followed);
  const edges = [...followed, ...otherEdges(chain, followed)];
  const order = ordered([...starts, ...names], edges);
  const rows = new Map(names.map((name) => [name, 0]));
  for (const name of order) {
    for (const edge of edges.filter((one) => one.from === name && !one.back)) {
      rows.set(edge.to, Math.max(Number(rows.get(edge.to)), Number(rows.get(name)) + 1));
    }
  }
  const nodes = placed(names, rows, edges);
  const most = (/** @type {number[]} */ numbers) => Math.max(-1, ...numbers) + 1;
  return { nodes, edges, rows: most(nodes.map((one) => one.row)), columns: most(nodes.map((one) => one.column)) };
}

/**
 * A column for each node: below the first that leads to it, if nothing is there. An edge keeps its column free down to its end.
 * @param {string[]} names
 * @param {Map<string, number>} rows
 * @param {Edge[]} edges
 */
function placed(names, rows, edges) {
  /** @type {Map<string, number>} */
  const columns = new Map();
  /** @type {Set<string>} */
  const taken = new Set();
  for (const name of [...names].sort((one, other) => Number(rows.get(one)) - Number(rows.get(other)))) {
    const row = Number(rows.get(name));
    const before = edges.find((edge) => edge.to === name && !edge.back)?.from;
    let column = columns.get(before ?? "") ?? 0;
    if (taken.has(`${row} ${column}`)) column = 0;
    while (taken.has(`${row} ${column}`)) column += 1;
    columns.set(name, column);
    const ends = edges.filter((edge) => edge.from === name && !edge.back).map((edge) => Number(rows.get(edge.to)));
    for (let at = row; at < Math.max(row + 1, ...ends); at++) taken.add(`${at} ${column}`);
  }
  return names.map((name) => ({ name, row: Number(rows.get(name)), column: Number(columns.get(name)) }));
}

/** The edges of the file, and the nodes that an agent may choose. @param {any} chain @returns {Edge[]} */
function followedEdges(chain) {
  const hints = Object.entries(chain.nodes).flatMap(([from, node]) =>
    (node.follow_hint ?? []).map((/** @type {string} */ to) => ({ from, to, when: `the agent names ${to}` })),
  );
  return [...hints, ...(chain.edges ?? [])].map(({ from, to, when }) => ({
    from,
    to,
    label: when ?? "",
    joins: false,
    back: false,
  }));
}

/**
 * From the ends of branches to the nodes that need them, and to a node that writes files before a question.
 * @param {any} chain
 * @param {Edge[]} followed
 * @returns {Edge[]}
 */
function otherEdges(chain, followed) {
  /** @type {Edge[]} */
  const edges = [];
  for (const [to, node] of Object.entries(chain.nodes)) {
    for (const branch of node.needs ?? []) {
      for (const from of endsOf(branch, followed)) edges.push({ from, to, label: "", joins: true, back: false });
    }
    if (node.apply && !followed.some((edge) => edge.to === to)) {
      edges.push({ from: node.apply, to, label: "before its question", joins: true, back: false });
    }
  }
  return edges;
}

/**
 * The nodes of a branch from which no edge leads on.
 * @param {string} branch
 * @param {Edge[]} edges
 */
function endsOf(branch, edges) {
  const onwards = edges.filter((edge) => !edge.back);
  const found = new Set([branch]);
  for (const name of found) for (const edge of onwards) if (edge.from === name) found.add(edge.to);
  return [...found].filter((name) => !onwards.some((edge) => edge.from === name));
}

/**
 * All nodes, each before those that come after it; marks the edges that lead back.
 * @param {string[]} names those where it begins first
 * @param {Edge[]} edges
 */
function ordered(names, edges) {
  /** @type {string[]} */
  const done = [];
  /** @type {Set<string>} */
  const seen = new Set();
  /** @type {Set<string>} */
  const open = new Set();
  const visit = (/** @type {string} */ name) => {
    if (seen.has(name)) return;
    seen.add(name);
    open.add(name);
    for (const edge of edges.filter((one) => one.from === name)) {
      edge.back = open.has(edge.to);
      visit(edge.to);
    }
    open.delete(name);
    done.push(name);
  };
  for (const name of names) visit(name);
  return done.reverse();
}
