const SVG = "http://www.w3.org/2000/svg";
function draws(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (text !== undefined) element.textContent = text;
  return element;
}
function duration(seconds) {
  if (seconds < 90) return `${number(seconds, seconds < 10 ? 1 : 0)} s`;
  return seconds < 5400 ? `${number(seconds / 60, 1)} min` : `${number(seconds / 3600, 1)} h`;
}
function niceTop(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((top) => top >= value * 0.999);
}

// lines: [{name, values, bars}] of one value a piece of the time line; bars stand on each other.
function chart(title, unit, lines, series) {
  const W = 360, H = 128, L = 40, B = 16, T = 8, wide = W - L - 4, tall = H - B - T;
  const count = lines[0].values.length, step = wide / count;
  const bars = lines.filter((line) => line.bars);
  const sums = Array.from({ length: count }, (_, i) => bars.reduce((sum, line) => sum + (line.values[i] ?? 0), 0));
  const top = niceTop(Math.max(0, ...sums, ...lines.flatMap((line) => line.values.map((v) => v ?? 0))));
  const y = (value) => T + tall * (1 - value / top), x = (place) => L + step * place;
  const figure = make("figure"), caption = make("figcaption"), key = make("span", "key");
  const svg = draws("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": title });
  for (const part of [0, 0.5, 1]) {
    svg.append(draws("line", { x1: L, x2: W - 4, y1: y(top * part), y2: y(top * part), class: "grid" }),
      draws("text", { x: L - 5, y: y(top * part) + 3.5, "text-anchor": "end" }, number(top * part, top < 10 ? 2 : 0)));
  }
  const under = Array(count).fill(0);
  lines.forEach((line, place) => {
    if (line.bars) {
      line.values.forEach((value, i) => {
        if (!value) return;
        svg.append(draws("rect", { x: x(i), width: Math.max(step - 0.6, 0.6), y: y(under[i] + value), height: y(under[i]) - y(under[i] + value), class: `c${place}` }));
        under[i] += value;
      });
      return;
    }
    const known = line.values.map((value, i) => [i, value]).filter(([, value]) => value !== null);
    if (known.length === 1) svg.append(draws("circle", { cx: x(known[0][0] + 0.5), cy: y(known[0][1]), r: 2.5, class: `dot c${place}` }));
    else svg.append(draws("polyline", { points: known.map(([i, value]) => `${x(i + 0.5).toFixed(1)},${y(value).toFixed(1)}`).join(" "), class: `line c${place}` }));
  });
  for (const [at, length] of series.pauses) {
    const mark = draws("line", { x1: x(at / series.piece_s), x2: x(at / series.piece_s), y1: T, y2: T + tall, class: "pause" });
    mark.append(draws("title", {}, `stood still for ${duration(length)}`));
    svg.append(mark);
  }
  const whole = series.piece_s * count;
  svg.append(draws("text", { x: L, y: H - 3 }, "0"), draws("text", { x: W - 4, y: H - 3, "text-anchor": "end" }, duration(whole)));
  const label = (i) => {
    // The title says what a single line is.
    key.replaceChildren(...(lines.length === 1 && i === null ? [] : lines).flatMap((line, place) => [make("i", `c${place}`),
      document.createTextNode(line.name + (i === null ? "" : ` ${number(line.values[i], 2)}`))]));
    if (i !== null) key.append(` · ${duration(series.piece_s * (i + 0.5))}`);
  };
  svg.onmousemove = (event) => {
    const at = (event.clientX - svg.getBoundingClientRect().left) / svg.getBoundingClientRect().width * W;
    label(Math.min(count - 1, Math.max(0, Math.floor((at - L) / step))));
  };
  svg.onmouseleave = () => label(null);
  label(null);
  caption.append(make("b", "", `${title}${unit ? `, ${unit}` : ""}`), key);
  figure.append(caption, svg);
  return figure;
}
function drawCharts() {
  const s = about.series;
  if (!s) { $("charts").hidden = true; return; }
  const line = (name, values, bars) => ({ name, values, bars });
  const charts = [
    ["Throughput", "rows/s", [line("ok", s.rows_per_s, true), line("failed", s.failed_per_s, true)]],
    ["Answers", "tokens/s", [line("answer tokens", s.completion_tokens_per_s)]],
    ["Prompts", "tokens/s", [line("image and text", s.prompt_tokens_per_s)]],
    ["Latency of a request", "s", [line("median", s.latency_p50_s), line("95 %", s.latency_p95_s)]],
    ["Queue", "requests", [line("sent", s.in_flight), line("running", s.engine_running), line("waiting", s.engine_waiting)]],
    ["Hottest GPU", "°C", [line("temperature", s.temperature_c)]],
  ];
  for (const [title, unit, lines] of charts) {
    const known = lines.filter((l) => l.values?.some((value) => value !== null));
    if (known.length) $("charts").append(chart(title, unit, known, s));
  }
}

// The error of each operator as a share of its tolerance, on a logarithmic scale from a ten-thousandth to ten times.
function errorBar(row) {
  const W = 260, H = 20, from = -4, to = 1;
  const x = (share) => 6 + (W - 12) * (Math.min(Math.max(Math.log10(share), from), to) - from) / (to - from);
  const svg = draws("svg", { viewBox: `0 0 ${W} ${H}`, width: W, height: H, role: "img" });
  svg.append(draws("line", { x1: 6, x2: W - 6, y1: H / 2, y2: H / 2, class: "grid" }),
    draws("line", { x1: x(1), x2: x(1), y1: 1, y2: H - 1, class: "line c1 tolerance" }));
  if (row.max_rel_l2 !== null && row.tolerance) {
    const share = row.max_rel_l2 / row.tolerance, colour = row.verdict === "healthy" ? "c0" : "c1";
    svg.append(draws("circle", { cx: x(share), cy: H / 2, r: 4.5, class: `dot ${colour}` }));
    svg.append(draws("title", {}, `${row.max_rel_l2.toExponential(2)} of a tolerance of ${row.tolerance.toExponential(2)}`));
  }
  return svg;
}
function drawKernels() {
  const holder = $("kernels"), list = about.run.kernels;
  holder.append(make("h2", "", "Kernel health by operator"));
  if (!list.length) { holder.append(make("p", "soft", "The engine of this run told nothing of its kernels.")); return; }
  const columns = [["operator", "Operator"], ["device", "Device"], ["verdict", "Verdict"], ["bar", "Error against tolerance (the line)"],
    ["max_rel_l2", "Worst error", 1], ["tolerance", "Tolerance", 1], ["launches", "Launches", 1], ["checked", "Checked", 1],
    ["nonfinite", "Not finite", 1], ["guard_hits", "Beside output", 1], ["repeat_mismatches", "Not repeated", 1],
    ["launch_errors", "Launch errors", 1], ["device_ms", "Device ms", 1]];
  const table = make("table"), head = make("tr"), scroll = make("div", "scroll");
  head.append(...columns.map(([, title, n]) => make("th", n ? "n" : "", title)));
  table.append(head);
  for (const row of list) {
    const line = make("tr");
    for (const [name, , n] of columns) {
      const cell = make("td", n ? "n" : "");
      if (name === "bar") cell.append(errorBar(row));
      else if (name === "verdict") cell.append(make("span", `badge ${row.verdict}`, row.verdict));
      else if (name === "max_rel_l2" || name === "tolerance") cell.textContent = row[name] === null ? "–" : row[name].toExponential(2);
      else cell.textContent = n ? number(row[name], name === "device_ms" ? 1 : 0) : row[name];
      line.append(cell);
    }
    table.append(line);
  }
  scroll.append(table);
  holder.append(scroll);
}
