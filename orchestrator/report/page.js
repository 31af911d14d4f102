"use strict";
// Texts only ever reach the page through textContent.
const make = (name, className, text) => {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined && text !== null) element.textContent = text;
  return element;
};
const number = (value, digits = 3) => (value === null || value === undefined ? "" : Number(value).toFixed(digits));
const ROW = 24;

// A list of any length: only the rows in sight are in the page.
class VirtualList {
  constructor(box, draw, choose, key) {
    Object.assign(this, { box, draw, choose, key, items: [], at: -1 });
    this.fill = box.querySelector(".fill");
    box.addEventListener("scroll", () => this.paint());
    box.addEventListener("keydown", (event) => this.onKey(event));
    // On the press and by place: rows are replaced while the list scrolls, and a click needs its element until the release.
    this.fill.addEventListener("mousedown", (event) => {
      if (event.button) return;
      const i = Math.floor((event.clientY - this.fill.getBoundingClientRect().top) / ROW);
      if (event.target.classList.contains("knob") && this.key) this.key("Enter", this.items[i]);
      else this.go(i);
    });
    new ResizeObserver(() => this.paint()).observe(box);
  }
  set(items, at = -1) {
    this.items = items;
    this.at = at;
    this.fill.style.height = items.length * ROW + "px";
    this.paint();
  }
  paint() {
    const first = Math.max(0, Math.floor(this.box.scrollTop / ROW) - 5);
    const last = Math.min(this.items.length, first + Math.ceil(this.box.clientHeight / ROW) + 10);
    const rows = [];
    for (let i = first; i < last; i++) {
      const row = this.draw(this.items[i], i);
      row.style.top = i * ROW + "px";
      row.id = this.box.dataset.name + "-" + i;
      row.classList.toggle("chosen", i === this.at);
      row.setAttribute("aria-selected", String(i === this.at));
      rows.push(row);
    }
    this.fill.replaceChildren(...rows);
    if (this.at >= 0) this.box.setAttribute("aria-activedescendant", this.box.dataset.name + "-" + this.at);
  }
  go(i) {
    if (i < 0 || i >= this.items.length) return;
    this.at = i;
    this.show(i);
    this.paint();
    this.choose(this.items[i], i);
  }
  show(i) {
    const top = i * ROW, box = this.box;
    if (top < box.scrollTop) box.scrollTop = top;
    if (top + ROW > box.scrollTop + box.clientHeight) box.scrollTop = top + ROW - box.clientHeight;
  }
  onKey(event) {
    const page = Math.max(1, Math.floor(this.box.clientHeight / ROW) - 1), end = this.items.length - 1;
    const to = { ArrowDown: this.at + 1, ArrowUp: this.at - 1, Home: 0, End: end,
      PageDown: Math.min(this.at + page, end), PageUp: Math.max(this.at - page, 0) }[event.key];
    if (to !== undefined) {
      event.preventDefault();
      this.go(to);
    } else if (this.key && this.key(event.key, this.items[this.at])) event.preventDefault();
  }
}

// One problem's tree: which nodes are open, as a list and as a map.
class TreeView {
  constructor(tree, part) {
    this.nodes = tree.nodes;
    this.byId = new Map(this.nodes.map((node) => [node.id, node]));
    this.children = new Map(this.nodes.map((node) => [node.id, []]));
    for (const node of this.nodes) if (node.parent !== null && this.children.has(node.parent)) this.children.get(node.parent).push(node);
    this.closed = new Set();
    this.detail = part(".node");
    const box = part(".tree");
    box.dataset.name = "node";
    this.list = new VirtualList(box, (node) => this.row(node), (node) => this.choose(node), (key, node) => this.key(key, node));
    this.map = new TreeMap(this, part(".map"));
    part(".open-all").addEventListener("click", () => this.close(false));
    part(".close-all").addEventListener("click", () => this.close(true));
    const show = (asMap) => {
      part(".map").hidden = !asMap;
      box.hidden = asMap;
      part(".as-map").setAttribute("aria-pressed", String(asMap));
      part(".as-list").setAttribute("aria-pressed", String(!asMap));
      if (asMap) this.map.fit();
    };
    part(".as-map").addEventListener("click", () => show(true));
    part(".as-list").addEventListener("click", () => show(false));
    const winners = this.nodes.filter((node) => node.win);
    this.refresh(winners.length ? winners[winners.length - 1] : this.nodes[0]);
  }
  visible() {
    const found = [], stack = this.nodes.length ? [this.nodes[0]] : [];
    while (stack.length) {
      const node = stack.pop();
      found.push(node);
      if (!this.closed.has(node.id)) stack.push(...[...this.children.get(node.id)].reverse());
    }
    return found;
  }
  refresh(node) {
    const items = this.visible();
    const at = items.indexOf(node);
    this.list.set(items, at);
    if (at >= 0) {
      this.list.show(at);
      this.choose(node);
    }
  }
  close(all) {
    this.closed = new Set(all ? this.nodes.filter((n) => n.parent !== null || !this.nodes[0]).map((n) => n.id) : []);
    this.refresh(this.nodes[0]);
  }
  toggle(node) {
    if (!this.children.get(node.id).length) return;
    if (!this.closed.delete(node.id)) this.closed.add(node.id);
    this.refresh(node);
  }
  key(key, node) {
    if (!node) return false;
    const open = this.children.get(node.id).length && !this.closed.has(node.id);
    if (key === "Enter" || key === " ") this.toggle(node);
    else if (key === "ArrowRight") open ? this.list.go(this.list.at + 1) : this.toggle(node);
    else if (key === "ArrowLeft") {
      if (open) this.toggle(node);
      else if (node.parent !== null) this.list.go(this.list.items.indexOf(this.byId.get(node.parent)));
    } else return false;
    return true;
  }
  row(node) {
    const row = make("div", "item" + (node.win ? " win" : "")), many = this.children.get(node.id).length;
    row.style.paddingLeft = 8 + Math.min(node.depth, 40) * 16 + "px";
    row.setAttribute("role", "treeitem");
    row.setAttribute("aria-level", node.depth + 1);
    if (many) row.setAttribute("aria-expanded", String(!this.closed.has(node.id)));
    const knob = make("span", "knob faint", many ? (this.closed.has(node.id) ? "▸ " : "▾ ") : "  ");
    const standing = node.score === null && node.standing !== null ? "~" + number(node.standing, 2) : number(node.score);
    row.append(knob, make("span", "", node.win ? "★ " : ""), make("span", "score", standing + " "),
      make("span", "faint", node.status + " "), make("bdi", "", node.text.slice(0, 160).replace(/\s+/g, " ")));
    return row;
  }
  choose(node) {
    const reuse = Object.entries(node.reused || {}).map(([tier, n]) => n + " " + tier).join(", ");
    const facts = { node: node.id, status: node.status, score: number(node.score), standing: number(node.standing),
      confidence: number(node.confidence), visits: node.visits, tokens: node.tokens, engine: node.engine,
      "reused by its expansion": reuse, "prefilled by it": node.prefilled, finish: node.finish,
      "equal samples": node.multiplicity > 1 ? node.multiplicity : "", reason: node.reason, answer: node.answer };
    const list = make("dl");
    for (const [name, value] of Object.entries(facts))
      if (value !== "" && value !== null && value !== undefined) list.append(make("dt", "", name), make("dd", "", value));
    this.detail.replaceChildren(list, make("p", "text", node.text || "(the problem)"));
    this.detail.dataset.node = node.id;
    this.map.chosen = node;
    this.map.paint();
  }
}

// The tree drawn as points: depth to the right, leaves downwards; drag to pan, wheel to zoom.
class TreeMap {
  constructor(view, canvas) {
    Object.assign(this, { view, canvas, scale: 1, x: 0, y: 0, chosen: null, places: new Map() });
    let leaf = 0;
    const stack = view.nodes.length ? [[view.nodes[0], false]] : [];
    while (stack.length) {
      const [node, done] = stack.pop(), kids = view.children.get(node.id);
      if (done) this.places.set(node.id, [node.depth, (this.places.get(kids[0].id)[1] + this.places.get(kids[kids.length - 1].id)[1]) / 2]);
      else if (!kids.length) this.places.set(node.id, [node.depth, leaf++]);
      else stack.push([node, true], ...[...kids].reverse().map((kid) => [kid, false]));
    }
    this.leaves = leaf;
    this.depth = view.nodes.reduce((most, node) => Math.max(most, node.depth), 1);
    let from = null, moved = false;
    canvas.addEventListener("pointerdown", (e) => { from = [e.offsetX, e.offsetY]; moved = false; canvas.setPointerCapture(e.pointerId); });
    canvas.addEventListener("pointermove", (e) => {
      if (!from) return;
      moved = moved || Math.abs(e.offsetX - from[0]) + Math.abs(e.offsetY - from[1]) > 3;
      this.pan(e.offsetX - from[0], e.offsetY - from[1]);
      from = [e.offsetX, e.offsetY];
    });
    canvas.addEventListener("pointerup", (e) => { from = null; if (!moved) this.pick(e.offsetX, e.offsetY); });
    canvas.addEventListener("wheel", (e) => { e.preventDefault(); this.zoom(e.deltaY < 0 ? 1.2 : 1 / 1.2, e.offsetX, e.offsetY); }, { passive: false });
    canvas.addEventListener("keydown", (e) => {
      const step = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[e.key];
      if (step) { e.preventDefault(); this.pan(...step); }
      if (e.key === "+" || e.key === "-") this.zoom(e.key === "+" ? 1.2 : 1 / 1.2, canvas.clientWidth / 2, canvas.clientHeight / 2);
    });
    canvas.addEventListener("theme", () => this.paint());
    new ResizeObserver(() => this.paint()).observe(canvas);
  }
  fit() {
    this.gapX = (this.canvas.clientWidth - 40) / this.depth;
    this.gapY = Math.max(6, (this.canvas.clientHeight - 30) / Math.max(this.leaves, 1));
    [this.scale, this.x, this.y] = [1, 20, 15];
    if (this.chosen) this.y = Math.min(15, this.canvas.clientHeight / 2 - this.places.get(this.chosen.id)[1] * this.gapY);
    this.paint();
  }
  spot(node) {
    const [depth, leaf] = this.places.get(node.id);
    return [depth * this.gapX * this.scale + this.x, leaf * this.gapY * this.scale + this.y];
  }
  pan(dx, dy) { this.x += dx; this.y += dy; this.paint(); }
  zoom(by, x, y) {
    this.scale *= by;
    this.x = x - (x - this.x) * by;
    this.y = y - (y - this.y) * by;
    this.paint();
  }
  pick(x, y) {
    let best = null, nearest = 100;
    for (const node of this.view.nodes) {
      const [nx, ny] = this.spot(node), distance = (nx - x) ** 2 + (ny - y) ** 2;
      if (distance < nearest) [best, nearest] = [node, distance];
    }
    if (best) { this.view.closed.clear(); this.view.refresh(best); }
  }
  paint() {
    const canvas = this.canvas, sharp = window.devicePixelRatio || 1;
    if (canvas.hidden || !canvas.clientWidth || this.gapX === undefined) return;
    canvas.width = canvas.clientWidth * sharp;
    canvas.height = canvas.clientHeight * sharp;
    const draw = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    const [line, mark, bad, front] = ["--line", "--mark", "--bad", "--front"].map(colour);
    draw.scale(sharp, sharp);
    for (const winning of [false, true])
      for (const node of this.view.nodes) {
        if (node.parent === null || Boolean(node.win) !== winning || !this.view.byId.has(node.parent)) continue;
        const [x, y] = this.spot(node), [px, py] = this.spot(this.view.byId.get(node.parent));
        if (Math.max(y, py) < 0 || Math.min(y, py) > canvas.clientHeight) continue;
        draw.strokeStyle = winning ? mark : line;
        draw.lineWidth = winning ? 3 : 1;
        draw.beginPath();
        draw.moveTo(px, py);
        draw.bezierCurveTo((px + x) / 2, py, (px + x) / 2, y, x, y);
        draw.stroke();
      }
    for (const node of this.view.nodes) {
      const [x, y] = this.spot(node);
      if (y < -5 || y > canvas.clientHeight + 5) continue;
      draw.fillStyle = node.status === "pruned" || node.status === "dead" ? bad : node.score === null ? front : `hsl(${node.score * 130} 70% 45%)`;
      draw.beginPath();
      draw.arc(x, y, node === this.chosen ? 6 : 3.5, 0, 7);
      draw.fill();
    }
  }
}

const runs = new Map();
for (const script of document.querySelectorAll("script.rows-data")) runs.set(script.dataset.run, { rows: JSON.parse(script.textContent), trees: new Map() });
for (const script of document.querySelectorAll("script.tree-data")) {
  // Only the id is read now; a tree is parsed when it is opened.
  const id = JSON.parse(/^\{"id":("(?:[^"\\]|\\.)*")/.exec(script.textContent)[1]);
  runs.get(script.dataset.run).trees.set(id, script);
}
const byId = (id) => document.getElementById(id);
const select = byId("run"), find = byId("find"), panel = byId("problem");
for (const name of runs.keys()) select.append(make("option", "", name));
const COLUMNS = [["id", "id"], ["question", "question"], ["answer", "answer"], ["correct", "right"], ["stop", "stopped"], ["tokens", "tokens"]];
let order = ["", 1];
const box = byId("rows");
box.dataset.name = "row";
const table = new VirtualList(box, drawRow, (row) => openProblem(row.id));

function drawRow(row) {
  const line = make("div", "item row");
  line.setAttribute("role", "option");
  const right = row.correct === null || row.correct === undefined ? "" : row.correct ? "yes" : "no";
  line.append(make("bdi", "", row.id), make("bdi", "", row.question.replace(/\s+/g, " ") || row.error), make("bdi", row.error ? "bad" : "", row.error ? "error" : row.answer),
    make("span", row.correct ? "good" : "bad", right), make("span", "", row.stop), make("span", "", row.tokens));
  return line;
}
function showRows() {
  const words = find.value.toLowerCase(), [column, way] = order;
  let rows = runs.get(select.value).rows.filter((row) => !words || [row.id, row.question, row.answer, row.stop, row.error].some((cell) => String(cell ?? "").toLowerCase().includes(words)));
  if (column) rows = [...rows].sort((a, b) => (a[column] === b[column] ? 0 : (a[column] ?? "") > (b[column] ?? "") ? way : -way));
  table.set(rows);
  byId("shown").textContent = rows.length + " problems";
}
for (const [column, title] of COLUMNS) {
  const button = make("button", "", title);
  button.type = "button";
  button.addEventListener("click", () => { order = [column, order[0] === column ? -order[1] : 1]; showRows(); });
  byId("heads").append(button);
}
function openProblem(id) {
  const { rows, trees } = runs.get(select.value), row = rows.find((one) => one.id === id), script = trees.get(id);
  if (!row || !script) {
    panel.replaceChildren(make("h2", "", id), make("p", "text bad", row && row.error ? row.error : "its tree is not in this report"));
    return;
  }
  const tree = JSON.parse(script.textContent);
  panel.replaceChildren(byId("problem-parts").content.cloneNode(true));
  const part = (name) => panel.querySelector(name);
  part(".name").textContent = id;
  part(".question").textContent = tree.question;
  const facts = { answer: tree.answer ?? "none", reference: tree.reference, right: row.correct === null ? "" : row.correct ? "yes" : "no", stopped: tree.stop,
    nodes: tree.nodes.length - 1, tokens: row.tokens, warnings: tree.warnings.join("; "), note: tree.note };
  for (const [name, value] of Object.entries(facts))
    if (value !== "" && value !== null && value !== undefined) part(".facts").append(make("dt", "", name), make("dd", "", value));
  for (const rival of tree.rivals) {
    const line = make("tr", tree.nodes.some((node) => node.win && node.id === rival.best) || rival.answer === tree.answer ? "won" : "");
    line.append(make("td", "", rival.answer), make("td", "", rival.votes === null ? "" : Number(rival.votes.toFixed(3))), make("td", "", rival.paths), make("td", "", number(rival.score)));
    part(".rivals tbody").append(line);
  }
  if (tree.nodes.length) new TreeView(tree, part);
}
select.addEventListener("change", showRows);
find.addEventListener("input", showRows);
byId("theme").addEventListener("click", () => {
  const root = document.documentElement, dark = matchMedia("(prefers-color-scheme: dark)").matches;
  const now = root.dataset.theme || (dark ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
  for (const map of panel.querySelectorAll("canvas.map")) map.dispatchEvent(new Event("theme"));
});
if (runs.size) {
  showRows();
  if (table.items.length) table.go(0);
}
