const VERDICTS = { accepted: "Accept (a)", edited: "Edit (e)", rejected: "Reject (r)" };

async function decide(row, verdict, answer = null) {
  const told = $("detail").querySelector(".told");
  try {
    const response = await fetch("reviews", {
      method: "POST", headers: { "Content-Type": "application/json" },
      body: JSON.stringify({ row_id: row.id, verdict, answer }),
    });
    const body = await response.json();
    if (!response.ok) throw new Error(body.error);
  } catch (error) {
    if (told) told.textContent = `not saved: ${error.message}`;
    return false;
  }
  if (verdict === "withdrawn") delete verdicts[row.id];
  else verdicts[row.id] = { verdict, answer };
  draw();
  countVerdicts();
  return true;
}
function countVerdicts() {
  const count = Object.values(verdicts).length;
  $("reviewed").textContent = number(count);
}
function verdictButtons(row) {
  const holder = make("div"), line = make("div", "verdicts"), told = make("div", "told");
  const now = standing(row)?.verdict;
  for (const [verdict, title] of Object.entries(VERDICTS)) {
    const button = make("button", verdict, title);
    button.setAttribute("aria-pressed", String(now === verdict));
    button.onclick = () => verdict === "edited" ? edit(row) : settle(row, now === verdict ? "withdrawn" : verdict);
    line.append(button);
  }
  told.setAttribute("role", "alert");
  holder.append(make("h2", "", "Review"), line, told);
  return holder;
}
async function settle(row, verdict, answer) {
  // The next one in the order that is shown: reviewing is going on, not going back.
  const next = shown[shown.indexOf(row) + 1];
  if (!(await decide(row, verdict, answer)) || open !== row) return;
  look(verdict !== "withdrawn" && next ? next : row);
}
function edit(row) {
  const holder = $("detail").querySelector(".verdicts"), field = make("textarea"), save = make("button", "save", "Save (Ctrl-Enter)"), leave = make("button", "", "Cancel");
  field.value = answerOf(row) ?? "";
  field.setAttribute("aria-label", "The right answer");
  save.onclick = () => settle(row, "edited", field.value);
  leave.onclick = () => look(row);
  field.onkeydown = (event) => {
    if (event.key === "Enter" && event.ctrlKey) save.click();
    if (event.key === "Escape") { event.preventDefault(); leave.click(); }
  };
  holder.replaceChildren(field, save, leave);
  field.focus();
}
function reviewKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const verdict = { a: "accepted", e: "edited", r: "rejected" }[event.key];
  if (!verdict) return;
  event.preventDefault();
  if (verdict === "edited") edit(open); else settle(open, verdict);
}
