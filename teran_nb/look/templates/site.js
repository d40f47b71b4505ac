"use strict";
// A page of a gallery site: a word shows its box in every picture of its card, and the first page has a search.
// Captions and ids enter the page as text (`textContent`), never as markup.

function make(parent, tag, text = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  return parent.appendChild(element);
}

// ---------------------------------------------------------------- words and boxes

// `data-boxes` holds a box for each picture of the card, "x,y,width,height,cosine" in percent, with ";" between them.
function light(word) {
  const card = word.closest(".card"), boxes = word.dataset.boxes.split(";");
  for (const spot of card.querySelectorAll(".spot")) spot.remove();
  for (const other of card.querySelectorAll(".lit")) other.classList.remove("lit");
  word.classList.add("lit");
  card.querySelectorAll(".picture").forEach((picture, i) => { if (boxes[i]) drawSpot(picture, boxes[i].split(",").map(Number)); });
}

// The cosine stands above its box where there is room in the picture, else below, else within.
function drawSpot(picture, [x, y, width, height, cosine]) {
  const spot = make(picture, "i");
  spot.className = "spot";
  spot.classList.toggle("leftward", x > 60);
  if (y <= 14) spot.classList.add(y + height < 86 ? "below" : "within");
  Object.assign(spot.style, {left: `${x}%`, top: `${y}%`, width: `${width}%`, height: `${height}%`});
  make(spot, "b", (cosine / 100).toFixed(2).replace("-", "\u2212"));
}

function onWord(event) {
  const word = event.target instanceof Element && event.target.closest(".word");
  if (word) light(word);
}
for (const kind of ["pointerover", "focusin", "click"]) document.addEventListener(kind, onWord);

// ---------------------------------------------------------------- search, on the first page

function startSearch() {
  const field = document.getElementById("search"), shownAtMost = 40;
  const rows = JSON.parse(document.getElementById("index").textContent)
    .map(([href, text, note, thumbnail]) => ({href, text, note, thumbnail, folded: text.toLowerCase()}));
  const count = (n, what) => `${n.toLocaleString("en")} ${what}`;

  function showRow({href, text, note, thumbnail}) {
    const link = make(make(document.getElementById("results"), "li"), "a");
    link.href = href;
    if (thumbnail) Object.assign(make(link, "img"), {src: thumbnail, alt: ""});
    const line = make(link, "span", text);
    line.dir = "auto";
    make(line, "small", note);
  }
  function search() {
    const terms = field.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = terms.length ? rows.filter(row => terms.every(term => row.folded.includes(term))) : [];
    document.getElementById("results").replaceChildren();
    found.slice(0, shownAtMost).forEach(showRow);
    let status = terms.length ? count(found.length, "found") : count(rows.length, "entries");
    if (found.length > shownAtMost) status += `, the first ${shownAtMost} shown`;
    document.getElementById("count").textContent = status;
  }
  field.addEventListener("input", search);
  search();
}
if (document.getElementById("search")) startSearch();
