async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).json();
}
function tell(name, value, mood) {
  const box = make("div", mood ?? "");
  box.append(make("b", "", value), make("span", "soft", name));
  $("summary").append(box);
  return box;
}
function drawSummary() {
  const run = about.run, t = run.throughput;
  document.title = `${run.run_id} · Zellige`;
  $("title").textContent = `${run.flow} · ${run.run_id}`;
  $("subtitle").textContent = `${run.state} · ${run.model} in ${run.dtype} · ${run.inputs.map(readable).join(", ")}`.slice(0, 300);
  tell("items", number(run.items));
  tell("ok", number(run.ok), "good");
  tell("failed", number(run.failed), run.failed ? "bad" : "");
  if (run.skipped) tell("skipped", number(run.skipped));
  tell("items/s", number(t.items_per_s, 2));
  tell("answer tokens/s", number(t.tokens_per_s, 1));
  if (t.wall_s) tell("worked", duration(t.wall_s));
  if (run.kernel_verdict) tell("kernels", run.kernel_verdict, { healthy: "good", unchecked: "" }[run.kernel_verdict] ?? "bad");
  tell("reviewed", number(Object.keys(verdicts).length)).querySelector("b").id = "reviewed";
}
function pairs(title, value) {
  const holder = make("div"), list = make("table", "fit");
  for (const [name, inside] of Object.entries(value)) {
    if (inside === null || inside === undefined || inside === "") continue;
    const line = make("tr"), cell = make("td");
    cell.append(make("pre", "", typeof inside === "object" ? JSON.stringify(inside, null, 1) : inside));
    line.append(make("td", "", name), cell);
    list.append(line);
  }
  holder.append(make("h2", "", title), list);
  return holder;
}
function drawRecipe() {
  const holder = make("div", "columns");
  holder.append(pairs("Recipe", about.recipe), ...about.environments.map((one, i) =>
    pairs(about.environments.length > 1 ? `Environment ${i + 1}` : "Environment", one)));
  $("recipe").append(holder);
  if (about.run.state !== "finished") $("recipe").append(make("p", "soft", `The run was ${about.run.state} when this page was made.`));
}
function drawNote() {
  const told = [];
  if (rows.length < about.rows_in_all) told.push(`${number(rows.length)} of ${number(about.rows_in_all)} rows are in this page: those that failed, and an even sample of the others.`);
  if (about.cut_to) told.push(`Texts longer than ${number(about.cut_to)} characters are cut; the store has them whole.`);
  $("note").textContent = told.join(" ");
}
async function start() {
  const read = (id) => JSON.parse($(id).textContent);
  about = read("about-data"); verdicts = read("reviews-data"); pictures = read("pictures-data");
  ({ items, rows } = await unpacked($("rows-data").textContent));
  drawSummary(); drawCharts(); prepareFilters(); drawKernels(); drawRecipe(); drawNote(); filter();
  document.body.dataset.ready = "yes";
}
start();
