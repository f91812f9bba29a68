// Draws the charts of the report from the JSON in the page. Whatever comes from there becomes text, never markup.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

function element(tag, attributes = {}, ...children) {
  const svg = ["svg", "rect", "polyline", "line"].includes(tag);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === "style") for (const [key, each] of Object.entries(value)) key.startsWith("--") ? made.style.setProperty(key, each) : (made.style[key] = each);
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

const known = (value) => value !== null && value !== undefined;
const digits = (value) => Number(value.toPrecision(3)).toLocaleString("en");
const percent = (share) => (share > 0 && share < 0.01 ? "<1 %" : `${Math.round(share * 100)} %`);

function milliseconds(value) {
  return value >= 1000 ? `${digits(value / 1000)} s` : value > 0 && value < 1 ? `${digits(value * 1000)} µs` : `${digits(value)} ms`;
}

function bytes(value) {
  const power = value >= 1 ? Math.min(5, Math.floor(Math.log2(value) / 10)) : 0;
  return `${digits(value / 1024 ** power)} ${["B", "KB", "MB", "GB", "TB", "PB"][power]}`;
}

const written = {
  ms: milliseconds, bytes, share: percent, count: digits, rate: (value) => `${digits(value)}/s`, cores: digits,
};

function legend(names) {
  return element("p", { class: "key" }, ...names.map(([name, colour]) =>
    element("span", {}, element("i", { class: colour }), ` ${name}`)));
}

function choice(names, chosen) {
  const options = names.map((name, number) => element("option", { value: number }, name));
  return element("select", { onchange: (event) => chosen(Number(event.target.value)) }, ...options);
}

// Seconds before the report was written, in words.
const moment = (seconds) => (seconds > -0.5 ? "the end" : `${Math.round(-seconds)} s before`);

// --- The ledger: a bar of phases; a click opens the bar of what is done in one, and then that of its lines.

const LEVELS = [
  { name: "phase", of: (entry) => entry.phase },
  { name: "what is done", of: (entry) => entry.activity },
  { name: "line", of: (entry) => entry.place || "no line of yours" },
];

function ledger(place, accounts) {
  let account = 0, lane = 0, path = [];

  function draw() {
    const lanes = accounts[account].lanes;
    const entries = lanes[lane][1];
    const tools = element("div", { class: "tools" });
    if (accounts.length > 1) {
      const select = choice(accounts.map((one) => one.name), (number) => { account = number; lane = 0; path = []; draw(); });
      select.value = account;
      tools.append(select);
    }
    if (lanes.length > 1) {
      tools.append(...lanes.map(([name], number) => element("button", {
        "aria-pressed": number === lane, onclick: () => { lane = number; path = []; draw(); },
      }, name)));
    }
    const parts = [tools];
    let inside = entries;
    for (let level = 0; level <= Math.min(path.length, LEVELS.length - 1); level++) {
      parts.push(...bar(inside, level));
      if (level < path.length) inside = inside.filter((entry) => LEVELS[level].of(entry) === path[level]);
    }
    place.replaceChildren(...parts, lines(inside));
  }

  function bar(entries, level) {
    const shares = new Map();
    for (const entry of entries) {
      const name = LEVELS[level].of(entry);
      const one = shares.get(name) ?? { share: 0, hue: entry.hue };
      shares.set(name, { ...one, share: one.share + entry.share });
    }
    const total = entries.reduce((sum, entry) => sum + entry.share, 0) || 1;
    const heaviest = [...shares].sort((one, other) => other[1].share - one[1].share);
    const above = level ? `${path.slice(0, level).join(" › ")}: ` : "";
    return [
      element("div", { class: "bar", "data-level": level }, ...heaviest.map(([name, { share, hue }]) => element("button", {
        class: hue, title: `${name}: ${percent(share)}`, "aria-label": `${name} ${percent(share)}`,
        style: { width: `${(share / total) * 100}%`, ...(share / total < 0.02 ? { padding: 0 } : {}) },
        ...(path.length > level ? { "aria-pressed": path[level] === name } : {}),
        onclick: () => { path = path[level] === name ? path.slice(0, level) : [...path.slice(0, level), name]; draw(); },
      }, share / total < 0.02 ? "" : `${name} ${percent(share)}`))),
      element("p", { class: "soft caption" }, `${above}by ${LEVELS[level].name}${level === path.length && level < 2 ? "; click to open one" : ""}`),
    ];
  }

  function lines(entries) {
    const shown = entries.filter((entry, number) => number === 0 || (number < 15 && entry.share >= 0.01));
    const unit = accounts[account].unit;
    const rows = shown.map((entry) => element("tr", {},
      element("td", { title: `${percent(entry.low)} to ${percent(entry.high)}, ${entry.basis}` }, percent(entry.share)),
      element("td", {}, known(entry.seconds) && unit !== "second" ? milliseconds(entry.seconds * 1000) : ""),
      element("td", {}, entry.phase),
      element("td", {}, entry.activity),
      element("td", {}, ...(entry.place ? [element("code", {}, entry.place)] : []),
        ...(entry.source ? [element("br"), element("code", { class: "soft" }, entry.source)] : []))));
    const rest = entries.slice(shown.length).reduce((sum, entry) => sum + entry.share, 0);
    const more = rest ? [element("p", { class: "soft" }, `${percent(rest)} in ${entries.length - shown.length} lighter ${entries.length - shown.length === 1 ? "entry" : "entries"}`)] : [];
    return element("div", { class: "scroll" }, element("table", { class: "entries" }, ...rows), ...more);
  }

  draw();
}

// --- The flame graph, growing downwards: a node is [function, place, whose code, samples, children]. Of two runs the
// samples are milliseconds of a unit, and behind the children are those before, those after, and whether they differ.

function flame(place, flames) {
  const frames = element("div", { class: "frames" });
  const read = element("p", { class: "read" });
  const hint = "Click a function to enlarge it; click the first one to go back.";
  const search = element("input", { type: "search", placeholder: "search functions and files", "aria-label": "search the flame graph", oninput: () => draw() });
  let tree = flames[0].root, top = tree, above = [];
  const compares = tree.length > 5;
  const most = compares ? Math.max(...flames.map((one) => largest(one.root))) : 0;

  function largest(node) {
    return Math.max(node[7] ? Math.abs(node[6] - node[5]) : 0, ...node[4].map(largest));
  }

  function kind(node) {
    if (!compares) return node[2] || "all";
    return !node[7] ? "even" : node[6] > node[5] ? "grew" : "shrank";
  }

  function words(node) {
    if (!compares) return `${percent(node[3] / tree[3])} of this thread, ${node[3]} samples`;
    const [before, after] = node.slice(5, 7);
    const change = `${after < before ? "−" : "+"}${milliseconds(Math.abs(after - before))}`;
    return `${milliseconds(before)} before, ${milliseconds(after)} after (${node[7] ? change : `${change}, within chance`})`;
  }
  const select = choice(flames.map((one) => one.name), (number) => { tree = flames[number].root; enter(tree, []); });
  select.setAttribute("aria-label", "process and thread");

  const label = ([name, at]) => (at ? `${name}  ${at}` : name);

  function enter(node, way) {
    [top, above] = [node, way];
    draw();
  }

  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const cells = [];
    let depth = 0, matched = 0;

    function cell(node, left, share, row, way, fades, counted) {
      const hit = wanted !== "" && label(node).toLowerCase().includes(wanted);
      if (hit && !counted) matched += node[3];
      cells.push(element("div", {
        class: `${kind(node)}${fades ? " above" : ""}${hit ? " hit" : ""}`,
        style: {
          left: `${left * 100}%`, width: `${share * 100}%`, top: `${row * 1.25}rem`,
          ...(compares ? { "--heat": Math.abs(node[6] - node[5]) / most } : {}),
        },
        onclick: () => (fades || node !== top ? enter(node, way) : enter(way.at(-1) ?? tree, way.slice(0, -1))),
        onmouseenter: () => { read.textContent = `${label(node)}: ${words(node)}`; },
      }, share > 0.015 ? node[0] : ""));
      depth = Math.max(depth, row + 1);
      return hit;
    }

    function below(node, left, row, way, counted) {
      const share = node[3] / top[3];
      if (share < 0.001) return;
      const hit = cell(node, left, share, row, way, false, counted);
      let from = left;
      const byName = [...node[4]].sort((one, other) => (one[0] < other[0] ? -1 : 1));
      for (const child of byName) {
        below(child, from, row + 1, [...way, node], counted || hit);
        from += child[3] / top[3];
      }
    }

    above.forEach((node, row) => cell(node, 0, 1, row, above.slice(0, row), true, true));
    below(top, 0, above.length, above, false);
    frames.replaceChildren(...cells);
    frames.style.height = `${depth * 1.25}rem`;
    frames.classList.toggle("searched", wanted !== "");
    read.textContent = wanted ? `"${search.value}" is on ${percent(matched / top[3])} of the samples shown` : hint;
  }

  const kinds = compares
    ? [["grew", "takes longer"], ["shrank", "takes less"], ["even", "no change beyond chance"]]
    : [["user", "yours"], ["torch", "torch"], ["library", "library"], ["stdlib", "Python"], ["native", "native"]];
  place.append(element("div", { class: "tools" }, select, search), frames, read,
    legend(kinds.map(([kind, name]) => [name, kind])));
  draw();
}

// --- Plots: an SVG that fills its width, with axes of text around it.

function plot(svg, top, bottom, left, right, tall = false) {
  return element("div", { class: tall ? "plot tall" : "plot" },
    element("div", { class: "axis up" }, element("span", {}, top), element("span", {}, bottom)), svg,
    element("div"), element("div", { class: "axis" }, element("span", {}, left), element("span", {}, right)));
}

function canvas(width, height, ...children) {
  return element("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none" }, ...children);
}

function onColumn(svg, columns, told) {
  svg.addEventListener("mousemove", (event) => {
    const box = svg.getBoundingClientRect();
    told(Math.max(0, Math.min(columns - 1, Math.floor(((event.clientX - box.left) / box.width) * columns))));
  });
}

function steps(place, { phases, columns }) {
  const totals = columns.map(([, , parts]) => parts.reduce((sum, part) => sum + part, 0));
  const most = Math.max(...totals) || 1;
  const rects = columns.flatMap(([, , parts], x) => {
    let y = 100;
    return parts.map((part, number) => {
      const height = (part / most) * 100;
      y -= height;
      return element("rect", { class: phases[number][1], x: x + 0.04, y, width: 0.92, height });
    });
  });
  const svg = canvas(columns.length, 100, ...rects);
  const read = element("p", { class: "read" });
  onColumn(svg, columns.length, (x) => {
    const [first, last, parts] = columns[x];
    const each = parts.map((part, number) => `${phases[number][0]} ${milliseconds(part)}`).join(" · ");
    read.textContent = `${first === last ? `step ${first}` : `steps ${first} to ${last}, mean`}: ${milliseconds(totals[x])} = ${each}`;
  });
  place.append(plot(svg, milliseconds(most), "0", `step ${columns[0][0]}`, `step ${columns.at(-1)[1]}`, true), read, legend(phases));
}

function over(place, charts) {
  for (const { title, quantity, lines } of charts) {
    const values = lines.flatMap((line) => line.points.map(([, value]) => value)).filter(known);
    const first = Math.min(...lines.map((line) => line.points[0]?.[0] ?? 0));
    const span = -first || 1;
    const most = quantity === "share" ? 1 : Math.max(...values) || 1;
    const drawn = lines.flatMap((line, number) => {
      const runs = [[]];
      for (const [time, value] of line.points) {
        if (known(value)) runs.at(-1).push(`${((time - first) / span) * 100},${100 - (value / most) * 98}`);
        else if (runs.at(-1).length) runs.push([]);
      }
      return runs.filter((run) => run.length).map((run) =>
        element("polyline", { class: `line-${number}`, points: (run.length > 1 ? run : [run[0], run[0]]).join(" ") }));
    });
    const svg = canvas(100, 100, ...drawn);
    const read = element("p", { class: "read" });
    onColumn(svg, 400, (column) => {
      const time = first + ((column + 0.5) / 400) * span;
      const each = lines.map((line) => {
        const near = line.points.reduce((one, other) => (Math.abs(other[0] - time) < Math.abs(one[0] - time) ? other : one), line.points[0]);
        return `${line.name} ${near && known(near[1]) ? written[quantity](near[1]) : "–"}`;
      });
      read.textContent = `${moment(time)}: ${each.join(" · ")}`;
    });
    place.append(element("figure", {}, element("h3", {}, title),
      plot(svg, written[quantity](most), "0", moment(first), "the end"),
      legend(lines.map((line, number) => [line.name, `line-${number}`])), read));
  }
}

function workers(place, lines) {
  for (const { name, points } of lines) {
    const measured = points.map(([, value]) => value).filter(known);
    const mean = measured.length ? `${digits(measured.reduce((sum, value) => sum + value, 0) / measured.length)} cores` : "–";
    place.append(element("div", { class: "strip" }, element("span", {}, name),
      element("div", { class: "cells" }, ...points.map(([time, value]) => known(value)
        ? element("i", { style: { opacity: Math.min(1, value) }, title: `${moment(time)}: ${digits(value)} cores` })
        : element("i", { class: "unknown" }))),
      element("span", {}, mean)));
  }
}

function latency(place, { bounds, counts, marks }) {
  const most = Math.max(...counts);
  const low = Math.log(bounds[0]), span = Math.log(bounds.at(-1)) - low;
  const bars = counts.map((count, x) => element("rect", {
    class: "count", x: x + 0.04, width: 0.92, y: 100 - (count / most) * 96, height: (count / most) * 96,
  }));
  const lines = marks.map(([, seconds]) => {
    const x = ((Math.log(seconds) - low) / span) * counts.length;
    return element("line", { class: "mark", x1: x, x2: x, y1: 0, y2: 100 });
  });
  const svg = canvas(counts.length, 100, ...bars, ...lines);
  const words = marks.map(([name, seconds]) => `${name} ${milliseconds(seconds * 1000)}`).join(" · ");
  const read = element("p", { class: "read" }, `red lines: ${words}`);
  onColumn(svg, counts.length, (x) => {
    read.textContent = `${milliseconds(bounds[x] * 1000)} to ${milliseconds(bounds[x + 1] * 1000)}: ${counts[x]} requests`;
  });
  place.append(plot(svg, `${most}`, "0", milliseconds(bounds[0] * 1000), milliseconds(bounds.at(-1) * 1000), true), read);
}

const DRAWN = [
  ["ledger", ledger, data.ledgers], ["flame", flame, data.flames], ["steps", steps, data.steps],
  ["over-time", over, [...data.over_time, ...data.gpu]], ["workers", workers, data.workers], ["latency", latency, data.latency],
];
for (const [id, draw, given] of DRAWN) {
  const place = document.getElementById(id);
  if (place) draw(place, given);
}
