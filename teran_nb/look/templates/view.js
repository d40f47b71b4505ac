"use strict";
// An alignment page: a word shows its regions, a region shows its words, a cell of the heat map shows both.
// Captions, ids and notes enter the page as text (`textContent` and attributes), never as markup.

const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const SVG = $("boxes").namespaceURI;
const ANY = -2;                           // a threshold below every cosine

let pair;                                 // the pair in the open tab
let hovered = null, pinned = null;        // {word, region}: under the pointer or the focus, and kept by a click
let boxesPerWord = 1, threshold = ANY;    // the two sliders
let spread = null;                        // whether a word is spread over the picture; before a click: for many regions, such as patches

// ---------------------------------------------------------------- helpers

function make(parent, tag, attributes = {}, text) {
  const element = parent.namespaceURI === SVG ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return parent.appendChild(element);
}
function refill(parent, count, add) {
  parent.replaceChildren();
  for (let i = 0; i < count; i++) add(parent, i);
}
function place(element, left, top, width, height) {
  Object.assign(element.style, {left: `${left}px`, top: `${top}px`, width: `${width}px`, height: `${height}px`});
}
function number(value) {
  const rounded = Math.abs(value) < .005 ? 0 : value;
  return rounded.toFixed(2).replace("-", "\u2212");
}
// How strong a cosine is coloured, in [-1,1]; where all are positive, the lowest has no colour.
function strength(cosine) {
  const {floor, limit} = data;
  return clamp(floor ? (cosine - floor) / Math.max(limit - floor, 1e-6) : cosine / limit, -1, 1);
}
const clamp = (value, low, high) => Math.max(low, Math.min(high, value));
const same = (a, b) => a?.word === b?.word && a?.region === b?.region;

// ---------------------------------------------------------------- data

// Adds to a pair of the page's data: cosines and weights as functions, every word's regions from the best on, and the best.
function decode(pair) {
  const floats = text => new Float32Array(Uint8Array.from(atob(text), character => character.charCodeAt(0)).buffer);
  const cosines = floats(pair.cosines), weights = floats(pair.weights), words = pair.words.length;
  const regions = Array.from({length: pair.regions}, (_, region) => region);
  pair.cosine = (region, word) => cosines[region * words + word];
  pair.weight = (region, word) => weights[region * words + word];
  pair.ranked = pair.words.map((_, word) =>
    regions.slice().sort((a, b) => pair.cosine(b, word) - pair.cosine(a, word) || a - b));
  pair.best = pair.ranked.map(list => list[0]);
  pair.top = pair.best.map((region, word) => region === undefined ? -Infinity : pair.cosine(region, word));
}

// ---------------------------------------------------------------- drawing a pair: caption, picture, heat map

function drawCaption() {
  const caption = $("caption");
  caption.replaceChildren();
  pair.words.forEach((word, j) => {
    caption.append(pair.gaps[j]);
    const button = make(caption, "button", {class: "word", type: "button", "data-word": j, "aria-pressed": false});
    make(button, "span", {}, word);
    if (pair.best[j] === undefined) return;
    const cosine = number(pair.top[j]);
    make(button, "small", {dir: "ltr"}, cosine);
    button.setAttribute("aria-label", `${word}: ${cosine}, region ${pair.best[j]}`);
    button.style.setProperty("--tint", Math.abs(strength(pair.top[j])));
    button.style.setProperty("--hue", `var(--${pair.top[j] < 0 ? "negative" : "positive"})`);
  });
  caption.append(pair.gaps[pair.words.length]);
}

// Large boxes come first, so that a small box inside a large one lies on top and can be pointed at.
function drawPicture() {
  const [width, height] = pair.size, without = pair.picture === undefined;
  $("scene").hidden = !pair.boxes && without;
  $("stage").style.aspectRatio = `${width} / ${height}`;
  $("stage").style.width = `${Math.round(500 * width / height)}px`;
  $("stage").toggleAttribute("data-empty", without);
  $("panel").toggleAttribute("data-panorama", pair.panorama);
  $("panel").style.setProperty("--left", `${clamp(.75 * width / height, .6, 1)}fr`);
  $("picture").hidden = without;
  $("picture").alt = `image ${pair.image}`;
  $("credit").textContent = pair.credit;
  if (!without) $("picture").src = data.pictures[pair.picture];
  $("boxes").setAttribute("viewBox", `0 0 ${width} ${height}`);
  $("boxes").replaceChildren();
  if (!pair.boxes) return;
  const area = ([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1);
  const regions = [...pair.boxes.keys()].sort((a, b) => area(pair.boxes[b]) - area(pair.boxes[a]));
  regions.forEach((region, i) => {
    const [x, y, x2, y2] = pair.boxes[region];
    make($("boxes"), "rect", {
      class: "box", x, y, width: x2 - x, height: y2 - y,
      "data-region": region, role: "button", tabindex: i ? -1 : 0, "aria-label": `region ${region}`,
    });
  });
}

function drawMap() {
  const words = pair.words.length;
  $("side").hidden = !words || !pair.regions;
  refill($("heads"), words, (heads, j) =>
    make(heads, "button", {type: "button", tabindex: -1, "data-word": j, title: pair.words[j]}, pair.words[j]));
  refill($("rows"), pair.regions, (rows, region) => make(rows, "div", {"data-region": region}, region));
  refill($("marks"), pair.regions && words, (marks, j) => {
    const mark = make(marks, "div", {class: "mark"});
    mark.style.left = `calc(var(--cell-width) * ${j})`;
    mark.style.top = `calc(var(--cell-height) * ${pair.best[j]})`;
  });
  $("plane").setAttribute("aria-label",
    `Cosines of ${pair.regions} regions (rows) with ${words} words (columns); the words above the picture say the same`);
  paintMap();
  fitMap();
}

// One pixel a cosine; the browser enlarges the canvas, so 300 regions by 200 words cost nothing. All tabs share one scale.
function paintMap() {
  const words = pair.words.length, canvas = $("heat"), style = getComputedStyle(document.documentElement);
  if (!words || !pair.regions) return;
  const colour = name => style.getPropertyValue(`--${name}`).split(",").map(Number);
  const positive = colour("positive"), zero = colour("zero"), negative = colour("negative");
  Object.assign(canvas, {width: words, height: pair.regions});
  const context = canvas.getContext("2d"), image = context.createImageData(words, pair.regions);
  for (let i = 0; i < words * pair.regions; i++) {
    const share = strength(pair.cosine(Math.floor(i / words), i % words));
    const end = share < 0 ? negative : positive;
    for (let c = 0; c < 3; c++) image.data[4 * i + c] = zero[c] + (end[c] - zero[c]) * Math.abs(share);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

function fitMap() {
  const words = pair.words.length, free = $("side").clientWidth - $("rows").offsetWidth - 14;
  const width = clamp(Math.floor(free / Math.max(1, words)), 19, 72);
  const height = pair.regions > 60 ? 12 : clamp(Math.round(470 / pair.regions), 13, 30);
  $("map").style.setProperty("--cell-width", `${width}px`);
  $("map").style.setProperty("--cell-height", `${height}px`);
  $("plane").style.width = `${width * words}px`;
  $("plane").style.height = `${height * pair.regions}px`;
  pair.cell = [width, height];
}

// Scrolls the heat map to a word's column and a region's row, where they are out of sight.
function reveal(word, region) {
  const map = $("map"), [width, height] = pair.cell;
  const left = $("rows").offsetWidth, head = $("heads").offsetHeight;
  if (word !== undefined) {
    const x = left + word * width;
    if (x < map.scrollLeft + left || x + width > map.scrollLeft + map.clientWidth) map.scrollLeft = x - map.clientWidth / 2;
  }
  if (region !== undefined) {
    const y = head + region * height;
    if (y < map.scrollTop + head || y + height > map.scrollTop + map.clientHeight) map.scrollTop = y - map.clientHeight / 2;
  }
}

// ---------------------------------------------------------------- what lights up

// A status line is made of strings and words of the caption; words are isolated, since they may be of any script.
const quoted = word => ["\u201c", {caption: pair.words[word]}, "\u201d"];
const listed = parts => parts.flatMap((part, i) => i ? [", ", ...part] : part);

function writeStatus(parts) {
  $("status").replaceChildren(...parts.map(part => {
    if (typeof part === "string") return part;
    const bold = document.createElement("b");
    make(bold, "bdi", {}, part.caption);
    return bold;
  }));
}

// The words and regions that belong to a focus, the word whose cosines the boxes show, and the status line.
function selection(focus) {
  const hint = pair.words.length && pair.regions ? "Point at a word or a box. A click pins it, Escape lets it go." : "";
  if (!focus) return {words: [], regions: [], status: [hint]};
  const {word, region} = focus;
  if (region === undefined) return selectWord(word);
  if (word === undefined) return selectRegion(region);
  const status = [...quoted(word), ` and region ${region}: ${number(pair.cosine(region, word))}`];
  return {words: [word], regions: [region], shown: word, status};
}
function selectWord(word) {
  const regions = pair.ranked[word].slice(0, boxesPerWord).filter(region => pair.cosine(region, word) >= threshold);
  let parts = listed(regions.map(region => [`region ${region} at ${number(pair.cosine(region, word))}`]));
  if (!pair.regions) parts = ["this image has no regions"];
  else if (!regions.length) parts = [`no region at ${number(threshold)} or more; its best has ${number(pair.top[word])}`];
  const counts = pair.wordWeights ? [`; the word counts ${number(pair.wordWeights[word])} times`] : [];
  return {words: [word], regions, shown: word, status: [...quoted(word), ": ", ...parts, ...counts]};
}
function selectRegion(region) {
  const all = [...pair.words.keys()], withCosine = word => [...quoted(word), ` ${number(pair.cosine(region, word))}`];
  const words = all.filter(word => pair.best[word] === region && pair.top[word] >= threshold);
  let parts = ["no word"];
  if (words.length) parts = ["chosen by ", ...listed(words.map(withCosine))];
  else if (all.length) {
    const nearest = all.reduce((a, b) => pair.cosine(region, b) > pair.cosine(region, a) ? b : a);
    parts = ["no word's best; nearest is ", ...withCosine(nearest)];
  }
  return {words, regions: [region], status: [`Region ${region}: `, ...parts]};
}

// Regions that are some word's best, at most twelve: what is outlined while nothing is in focus.
function chosenRegions() {
  const words = [...pair.top.keys()].filter(word => pair.top[word] >= threshold);
  words.sort((a, b) => pair.top[b] - pair.top[a]);
  return new Set(words.map(word => pair.best[word]).slice(0, 12));
}

function show() {
  const focus = hovered || pinned, selected = selection(focus), chosen = chosenRegions();
  const words = new Set(selected.words), ranks = new Map(selected.regions.map((region, i) => [region, i + 1]));
  $("panel").toggleAttribute("data-busy", !!focus);
  for (const head of $("heads").children) head.dataset.active = words.has(+head.dataset.word);
  for (const button of $("caption").children) {
    const word = +button.dataset.word, pressed = same(pinned, {word});
    button.dataset.active = words.has(word);
    button.dataset.below = pair.top[word] < threshold;
    button.dataset.pinned = pressed;
    button.setAttribute("aria-pressed", pressed);
  }
  for (const element of [...$("boxes").children, ...$("rows").children]) {
    const region = +element.dataset.region;
    element.dataset.active = ranks.has(region);
    element.dataset.chosen = chosen.has(region);
    element.dataset.rank = ranks.get(region) || 0;
    element.dataset.pinned = pinned?.region === region;
  }
  writeStatus(selected.status);
  drawCloud(selected.shown);
  drawBands(selected);
  if (focus) drawChips(selected.regions, (chip, region) => describe(chip, region, selected));
  else drawChips([...chosen], null);
}

// Frames around the columns and rows of the heat map.
function drawBands({words, regions}) {
  const [width, height] = pair.cell, bands = $("bands");
  const band = kind => make(bands, "div", {class: "band", "data-kind": kind});
  bands.replaceChildren();
  for (const region of regions.slice().reverse())
    place(band(region === regions[0] ? "best" : "next"), 0, region * height, pair.words.length * width, height);
  for (const word of words) place(band("best"), word * width, 0, width, pair.regions * height);
}

// ---------------------------------------------------------------- a word spread over the picture

// The map of `Alignment.heat`, 48 cells along the longer side: a mean, and every region with its weight, smoothed.
function cloudOf(word) {
  const [width, height] = pair.size, longer = Math.max(width, height);
  const columns = Math.max(1, Math.round(48 * width / longer)), rows = Math.max(1, Math.round(48 * height / longer));
  const areas = pair.boxes.map(([x1, y1, x2, y2]) => (x2 - x1) * (y2 - y1)).filter(area => area > 0);
  const scale = Math.max(Math.sqrt(areas.reduce((a, b) => Math.min(a, b), Infinity)), longer / 48) / 2;
  const near = (a, b) => Math.exp(-((a - b) ** 2) / (2 * scale ** 2));
  const added = new Float64Array(rows * columns), known = new Uint8Array(rows * columns);
  pair.boxes.forEach(([x1, y1, x2, y2], region) => {
    const across = shares(x1, x2, width / columns, columns);
    for (const [y, high] of shares(y1, y2, height / rows, rows))
      for (const [x, wide] of across) {
        added[y * columns + x] += high * wide * pair.weight(region, word);
        known[y * columns + x] = 1;
      }
  });
  const smooth = added.map((_, i) => sum(columns, x => added[i - i % columns + x] * near(x * width / columns, i % columns * width / columns)));
  const values = smooth.map((_, i) => !known[i] ? NaN : pair.means[word] + sum(rows, y => smooth[y * columns + i % columns]
    * near(y * height / rows, Math.floor(i / columns) * height / rows)));
  const low = values.reduce((a, b) => b < a ? b : a, Infinity), high = values.reduce((a, b) => b > a ? b : a, -Infinity);
  return {values, rows, columns, low, high};
}

function sum(count, term) {
  let total = 0;
  for (let i = 0; i < count; i++) total += term(i);
  return total;
}
// Which share of a box each cell along one side of the picture has.
function shares(low, high, cell, count) {
  const parts = [];
  for (let i = Math.max(0, Math.floor(low / cell)); i < count && i * cell < high; i++)
    parts.push([i, Math.min(high, (i + 1) * cell) - Math.max(low, i * cell)]);
  const total = sum(parts.length, i => parts[i][1]);
  return parts.map(([i, length]) => [i, length / total]).filter(([, share]) => share > 0);
}

// From the lowest cosine of the word, transparent, to its highest, vermilion, and paler for a weak word; the picture turns grey below it.
function drawCloud(word) {
  const many = pair.regions > 100, on = spread ?? many, cloud = $("cloud");
  const shown = on && word !== undefined && pair.boxes && pair.regions > 0;
  $("spread").checked = on;
  $("spread-is").value = "";
  cloud.hidden = !shown;
  $("stage").toggleAttribute("data-cloud", !!shown);
  if (!shown) return;
  pair.clouds ??= new Map();
  if (!pair.clouds.has(word)) pair.clouds.set(word, cloudOf(word));
  const {values, rows, columns, low, high} = pair.clouds.get(word);
  Object.assign(cloud, {width: columns, height: rows});
  const context = cloud.getContext("2d"), image = context.createImageData(columns, rows);
  const opacity = 215 * clamp(strength(pair.top[word]), .25, 1);
  values.forEach((value, i) => {
    const share = high > low ? (value - low) / (high - low) : 1;
    image.data.set([213, 94, 0, Number.isNaN(value) ? 0 : opacity * share], 4 * i);
  });
  context.putImageData(image, 0, 0);
  $("spread-is").value = `${number(low)} to ${number(high)}`;
}

// ---------------------------------------------------------------- labels of boxes

// A box says its number and either the cosine of the word in focus or the first three words that chose it.
function describe(chip, region, {words, shown}) {
  make(chip, "i", {}, $("stage").clientWidth < 420 ? `#${region}` : `region ${region}`);
  if (shown !== undefined) {
    make(chip, "span", {}, number(pair.cosine(region, shown)));
    return;
  }
  words.slice(0, 3).forEach((word, i) => {
    if (i) chip.append(", ");
    make(chip, "bdi", {}, pair.words[word]);
    chip.append(` ${number(pair.cosine(region, word))}`);
  });
  if (words.length > 3) chip.append(" \u2026");
}

// Each label takes the place around its box where it covers least of the labels before it.
function drawChips(regions, write) {
  $("labels").replaceChildren();
  if (!pair.boxes) return;
  const stage = {width: $("stage").clientWidth, height: $("stage").clientHeight};
  const chips = regions.map((region, i) => {
    const chip = make($("labels"), "span", {class: "chip", "data-region": region, "data-rank": write ? i + 1 : 0});
    if (write) write(chip, region);
    else chip.textContent = region;
    return chip;
  });
  const sizes = chips.map(chip => [chip.offsetWidth, chip.offsetHeight]), taken = [];
  chips.forEach((chip, i) => {
    const [width, height] = sizes[i], box = onStage(pair.boxes[regions[i]], stage);
    const corners = write ? labelPlaces(box, width, height) : [[box[0] + 2, box[1] + 2], ...labelPlaces(box, width, height)];
    const candidates = corners.map(([x, y]) =>
      [clamp(x, 1, stage.width - width - 1), clamp(y, 1, stage.height - height - 1), width, height]);
    const covered = candidate => taken.reduce((sum, other) => sum + overlap(candidate, other), 0);
    const spot = candidates.reduce((a, b) => covered(b) < covered(a) ? b : a);
    chip.style.left = `${spot[0]}px`;
    chip.style.top = `${spot[1]}px`;
    taken.push(spot);
  });
}
function onStage([x1, y1, x2, y2], stage) {
  const across = stage.width / pair.size[0], down = stage.height / pair.size[1];
  return [x1 * across, y1 * down, x2 * across, y2 * down];
}
function labelPlaces([x1, y1, x2, y2], width, height) {
  const outside = [[x1, y1 - height - 2], [x1, y2 + 2], [x2 - width, y1 - height - 2], [x2 - width, y2 + 2]];
  const inside = [[x1 + 2, y1 + 2], [x1 + 2, y2 - height - 2], [x2 - width - 2, y1 + 2]];
  return [...outside, ...inside, [x2 + 2, y1]];
}
function overlap([x, y, width, height], [x2, y2, width2, height2]) {
  const across = Math.min(x + width, x2 + width2) - Math.max(x, x2);
  const down = Math.min(y + height, y2 + height2) - Math.max(y, y2);
  return Math.max(0, across) * Math.max(0, down);
}

// ---------------------------------------------------------------- pointer and keyboard

// The word, the region, or both, that an event is about; null elsewhere.
function focusOf(event) {
  const element = event.target.closest("[data-word],[data-region]"), plane = event.target.closest("#plane");
  const index = text => text === undefined ? undefined : +text;
  if (element) return {word: index(element.dataset.word), region: index(element.dataset.region)};
  if (!plane) return null;
  const edge = plane.getBoundingClientRect(), [width, height] = pair.cell;
  return {
    word: clamp(Math.floor((event.clientX - edge.left) / width), 0, pair.words.length - 1),
    region: clamp(Math.floor((event.clientY - edge.top) / height), 0, pair.regions - 1),
  };
}
function hover(focus, event) {
  if (same(focus, hovered)) return;
  hovered = focus;
  show();
  if (!focus || $("map").contains(event.target)) return;
  reveal(focus.word, focus.word === undefined ? focus.region : pair.best[focus.word]);
}
function togglePin(focus) {
  if (!focus) return;
  pinned = same(focus, pinned) ? null : focus;
  show();
}

// Arrow keys go from one tab, word or box to the next, in the writing direction of the text.
function step(event) {
  const list = event.target.closest("#tabs,#caption,#boxes");
  const move = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[event.key];
  if (!list || !move) return;
  const items = [...list.children], current = items.indexOf(event.target.closest("[data-word],[data-region],[role=tab]"));
  const reversed = getComputedStyle(list).direction === "rtl" && /Left|Right/.test(event.key);
  const next = items[(current + (reversed ? -move : move) + items.length) % items.length];
  if (list.id !== "caption") for (const item of items) item.setAttribute("tabindex", item === next ? 0 : -1);
  event.preventDefault();
  next.focus();
  if (list.id === "tabs") next.click();
}
function press(event) {
  if (event.key === "Escape") {
    pinned = hovered = null;
    show();
  }
  if (event.target.matches(".box") && (event.key === "Enter" || event.key === " ")) {
    event.preventDefault();
    togglePin(focusOf(event));
  }
  step(event);
}

// ---------------------------------------------------------------- tabs, and the start

// A pin survives a change of tab where the pair stays the same: the same caption and image, seen by another model.
function openPair(i) {
  const before = pair;
  pair = data.pairs[i];
  if (!pair.cosine) decode(pair);
  if (!before || before.caption !== pair.caption || before.image !== pair.image) pinned = null;
  hovered = null;
  const tabs = $("tabs"), tab = tabs.children[i];
  for (const other of tabs.children) {
    other.setAttribute("aria-selected", other === tab);
    other.setAttribute("tabindex", other === tab ? 0 : -1);
  }
  tabs.scrollLeft = tab.offsetLeft + tab.offsetWidth / 2 - tabs.clientWidth / 2;
  $("notes").hidden = !pair.notes.length;
  refill($("notes"), pair.notes.length, (notes, n) => make(notes, "li", {}, pair.notes[n]));
  $("controls").hidden = !pair.words.length || !pair.boxes;
  drawCaption();
  drawPicture();
  drawMap();
  show();
}

function start() {
  const panel = $("panel");
  panel.addEventListener("pointerover", event => hover(focusOf(event), event));
  panel.addEventListener("pointermove", event => { if (event.target.closest("#plane")) hover(focusOf(event), event); });
  panel.addEventListener("pointerleave", event => hover(null, event));
  panel.addEventListener("focusin", event => {
    if (event.target.matches(":focus-visible") && focusOf(event)) hover(focusOf(event), event);
  });
  panel.addEventListener("focusout", event => hover(null, event));
  panel.addEventListener("click", event => togglePin(focusOf(event)));
  document.addEventListener("keydown", press);
  $("k").addEventListener("input", event => {
    boxesPerWord = +event.target.value;
    $("k-is").value = boxesPerWord;
    show();
  });
  $("least").addEventListener("input", event => {
    threshold = event.target.value === event.target.min ? ANY : +event.target.value;
    $("least-is").value = threshold === ANY ? "any" : number(threshold);
    show();
  });
  $("spread").addEventListener("change", event => {
    spread = event.target.checked;
    show();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paintMap);
  data.pairs.forEach((pair, i) => {
    const attributes = {type: "button", role: "tab", "aria-controls": "panel", dir: "auto", title: pair.name};
    make($("tabs"), "button", attributes, pair.name).addEventListener("click", () => openPair(i));
  });
  $("tabs").hidden = data.pairs.length < 2;
  openPair(0);
  new ResizeObserver(() => { fitMap(); show(); }).observe(panel);
}
start();
