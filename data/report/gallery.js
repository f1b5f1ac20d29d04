"use strict";
const $ = (id) => document.getElementById(id);
const PAGE = 48;
let about, items, rows, pictures, verdicts;
let shown = [], page = 0, open = null;

// Text from a run is never markup: it is set as text, here and nowhere else.
const make = (tag, name, text) => {
  const element = document.createElement(tag);
  if (name) element.className = name;
  if (text !== undefined && text !== null) element.textContent = text;
  return element;
};
const number = (value, digits = 0) => value === null || value === undefined ? "–" :
  Number(value).toLocaleString("en", { maximumFractionDigits: digits });

function readable(uri) {
  if (!uri.startsWith("file://")) return uri;
  try { return decodeURIComponent(uri.slice(7)); } catch { return uri; }
}
function nameOf(item) {
  const path = readable(item.uri);
  const base = path.split("/").pop() || path;
  return base + (item.member ? ` › ${item.member}` : "") + (item.page ? ` · page ${item.page}` : "");
}
const standing = (row) => verdicts[row.id];
const answerOf = (row) => standing(row)?.verdict === "edited" ? standing(row).answer : row.answer;

function frame(row, height, large) {
  const item = items[row.item], holder = make("div", "picture");
  const address = about.served ? `${large ? "large" : "small"}/${row.item}` : pictures.drawn[row.item];
  if (!address) {
    const drawn = pictures.missing[row.item];
    holder.append(make("div", "nothing", drawn ?? (row.status === "failed" ? row.error_kind :
      "no picture in this file; zellige review draws it")));
    return holder;
  }
  const box = make("div", "frame"), image = make("img");
  image.loading = "lazy"; image.alt = ""; image.src = address;
  image.onerror = async () => {
    const why = about.served ? await (await fetch(address)).text() : "the picture cannot be drawn";
    holder.replaceChildren(make("div", "nothing", why));
  };
  box.append(image);
  const [w, h] = [item.width, item.height];
  if (w && h) {
    box.style.aspectRatio = `${w} / ${h}`;
    box.style.width = large ? `min(100%, ${66 * w / h}vh)` : `min(100%, ${height * w / h}px)`;
    for (const [x, y, width, tall] of row.tiles ?? []) {
      if (width >= w && tall >= h) { box.append(make("div", "box hidden")); continue; }
      const tile = make("div", "box");
      tile.style.left = `${100 * x / w}%`; tile.style.top = `${100 * y / h}%`;
      tile.style.width = `${100 * width / w}%`; tile.style.height = `${100 * tall / h}%`;
      box.append(tile);
    }
  }
  holder.append(box);
  return holder;
}

function sureness(row) {
  if (row.confidence === undefined) return [];
  const bar = make("meter"); bar.value = row.confidence; bar.title = "confidence";
  return [bar, make("span", "", row.confidence.toFixed(2))];
}
function badges(row) {
  const told = standing(row);
  return [make("span", `badge ${row.status}`, row.status === "failed" ? row.error_kind : row.status),
    ...(told ? [make("span", `badge ${told.verdict}`, told.verdict)] : [])];
}
function words(row) {
  const parts = [];
  if (row.question) parts.push(make("div", "asked", row.question));
  const said = answerOf(row);
  if (said !== undefined && said !== null) parts.push(make("div", "said", said === "" ? "(nothing is printed)" : said));
  if (row.error) parts.push(make("div", "why", row.error));
  return parts;
}
function card(row) {
  const box = make("div", "card"), text = make("div", "words"), foot = make("div", "foot");
  box.tabIndex = 0; box.setAttribute("role", "button"); box.dataset.row = row.id;
  foot.append(...badges(row), ...sureness(row));
  if (row.tiles) foot.append(make("span", "", `${row.tiles.length} views`));
  text.append(make("div", "name", nameOf(items[row.item])), ...words(row), foot);
  box.append(frame(row, 178, false), text);
  box.onclick = () => look(row);
  box.onkeydown = (event) => { if (event.key === "Enter" && event.target === box) look(row); };
  return box;
}

function facts(row) {
  const item = items[row.item], list = make("table", "fit");
  const lines = {
    "File": readable(item.uri), "Member": item.member, "Page": item.page,
    "Pixels": item.width ? `${item.width} × ${item.height}` : null,
    "Ended": row.finish_reason, "Attempts": row.attempts,
    "Tokens": row.completion_tokens === undefined ? null :
      `${number(row.completion_tokens)} answer, ${number(row.prompt_tokens)} prompt, ${number(row.image_tokens)} of them image`,
    "Seconds": row.engine_s === undefined ? null : `${number(row.engine_s, 2)} engine, ${number(row.decode_s, 2)} decoding`,
    "Answered": row.at, "Row": row.id, ...item.metadata,
  };
  for (const [name, value] of Object.entries(lines)) {
    if (value === null || value === undefined) continue;
    const line = make("tr");
    line.append(make("td", "", name), make("td", "", value));
    list.append(line);
  }
  return list;
}
function tileList(row, picture) {
  const list = make("ol", "tiles"), boxes = picture.querySelectorAll(".box");
  row.tiles.forEach(([x, y, width, height, said, sure], place) => {
    const line = make("li"), item = items[row.item], whole = width >= item.width && height >= item.height;
    line.append(make("span", "", said ?? "(not answered)"),
      make("span", "soft", `${whole ? "the whole" : `${x}, ${y}`}${sure === null ? "" : ` · ${sure.toFixed(2)}`}`));
    const light = (on) => { line.classList.toggle("lit", on); boxes[place]?.classList.toggle("lit", on); };
    for (const part of [line, boxes[place]]) {
      if (!part) continue;
      part.onmouseenter = () => light(true); part.onmouseleave = () => light(false);
    }
    list.append(line);
  });
  return list;
}
function look(row) {
  open = row;
  const sheet = make("div", "sheet"), top = make("div", "top"), side = make("div"), foot = make("div", "foot");
  const place = shown.indexOf(row), back = make("button", "", "‹"), next = make("button", "", "›"), close = make("button", "", "Close");
  back.disabled = place <= 0; next.disabled = place < 0 || place + 1 >= shown.length;
  close.autofocus = true; back.title = "Back (←)"; next.title = "Next (→)";
  back.onclick = () => look(shown[place - 1]); next.onclick = () => look(shown[place + 1]); close.onclick = () => $("detail").close();
  const title = make("div", "", nameOf(items[row.item]));
  top.append(back, title, next, close);
  const picture = frame(row, 0, true);
  foot.append(...badges(row), ...sureness(row));
  side.append(...words(row), foot);
  if (standing(row)?.verdict === "edited" && row.answer !== undefined) side.append(make("h2", "", "The model said"), make("div", "said", row.answer));
  if (about.served) side.append(verdictButtons(row));
  if (row.tiles) side.append(make("h2", "", `What each of ${row.tiles.length} views said`), tileList(row, picture));
  side.append(make("h2", "", "Facts"), facts(row));
  sheet.append(top, picture, side);
  $("detail").replaceChildren(sheet);
  if (!$("detail").open) $("detail").showModal();
  $("detail").scrollTop = 0;
}

function hay(row) {
  row.hay ??= [row.answer, row.question, row.error, nameOf(items[row.item]), readable(items[row.item].uri)]
    .filter(Boolean).join("\n").toLowerCase();
  return row.hay;
}
function chosenStatuses() {
  return [...$("statuses").children].filter((b) => b.getAttribute("aria-pressed") === "true").map((b) => b.value);
}
function filter() {
  const statuses = chosenStatuses(), kind = $("kind").value, asked = $("asked").value, verdict = $("verdict").value;
  const text = $("text").value.trim().toLowerCase(), least = Number($("least").value), most = Number($("most").value);
  const anySure = least <= 0 && most >= 1;
  shown = rows.filter((row) => (!statuses.length || statuses.includes(row.status))
    && (!kind || row.error_kind === kind) && (!asked || row.question_id === asked)
    && (!verdict || (standing(row)?.verdict ?? "open") === verdict)
    && (anySure || (row.confidence >= least && row.confidence <= most))
    && (!text || hay(row).includes(text) || (answerOf(row) ?? "").toLowerCase().includes(text)));
  const by = { unsure: (r) => r.confidence ?? 2, slow: (r) => -(r.engine_s ?? 0), long: (r) => -(r.completion_tokens ?? 0) }[$("order").value];
  if (by) shown.sort((a, b) => by(a) - by(b));
  page = 0;
  draw();
}
function draw() {
  const pages = Math.max(1, Math.ceil(shown.length / PAGE));
  page = Math.min(Math.max(page, 0), pages - 1);
  $("gallery").replaceChildren(...shown.slice(page * PAGE, (page + 1) * PAGE).map(card));
  $("found").textContent = `${number(shown.length)} of ${number(rows.length)} rows`;
  for (const where of document.querySelectorAll(".where")) where.textContent = `page ${page + 1} of ${number(pages)}`;
  for (const back of document.querySelectorAll("button.back")) back.disabled = page === 0;
  for (const next of document.querySelectorAll("button.next")) next.disabled = page + 1 >= pages;
}
function turn(by) { page += by; draw(); $("answers").scrollIntoView(); }

function choices(select, all, values, named = (value) => value) {
  select.append(new Option(all, ""), ...values.map((value) => new Option(named(value), value)));
}
function prepareFilters() {
  const count = (of) => rows.reduce((sums, row) => { const key = of(row); if (key) sums.set(key, (sums.get(key) ?? 0) + 1); return sums; }, new Map());
  for (const [status, times] of count((row) => row.status)) {
    const chip = make("button", "", `${status} ${number(times)}`);
    chip.type = "button"; chip.value = status; chip.setAttribute("aria-pressed", "false");
    chip.onclick = () => { chip.setAttribute("aria-pressed", String(chip.getAttribute("aria-pressed") !== "true")); filter(); };
    $("statuses").append(chip);
  }
  const kinds = count((row) => row.error_kind), asked = new Map(rows.map((row) => [row.question_id, row.question ?? row.question_id]));
  choices($("kind"), "any", [...kinds.keys()].sort(), (kind) => `${kind} (${number(kinds.get(kind))})`);
  choices($("asked"), "all", [...asked.keys()], (id) => asked.get(id));
  choices($("verdict"), "any", ["open", "accepted", "edited", "rejected"]);
  $("question-row").hidden = asked.size < 2;
  $("verdict-row").hidden = !about.served && !Object.keys(verdicts).length;
  for (const field of ["kind", "asked", "verdict", "least", "most", "order"]) $(field).onchange = filter;
  $("text").oninput = filter;
  $("filters").onsubmit = (event) => event.preventDefault();
  for (const back of document.querySelectorAll("button.back")) back.onclick = () => turn(-1);
  for (const next of document.querySelectorAll("button.next")) next.onclick = () => turn(1);
  $("detail").onclose = () => { open = null; };
  document.onkeydown = (event) => {
    if (!open || ["TEXTAREA", "INPUT"].includes(event.target.tagName)) return;
    const place = shown.indexOf(open);
    if (event.key === "ArrowLeft" && place > 0) look(shown[place - 1]);
    else if (event.key === "ArrowRight" && place >= 0 && place + 1 < shown.length) look(shown[place + 1]);
    else if (about.served) reviewKey(event);
  };
}
