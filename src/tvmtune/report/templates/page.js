"use strict";
(() => {
  const charts = JSON.parse(document.getElementById("charts").textContent);
  const codes = JSON.parse(document.getElementById("codes").textContent);
  const options = {actions: false, renderer: "svg", config: charts.config, ast: false};

  const draw = (place) => {
    if (place.dataset.drawn) return Promise.resolve();
    place.dataset.drawn = "yes";
    return vegaEmbed(place, charts.specs[place.dataset.chart], options);
  };

  const inflate = async (text) => {
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };

  const showCode = async (place) => {
    if (place.dataset.shown) return;
    place.dataset.shown = "yes";
    for (const [title, text] of Object.entries(await inflate(codes[place.dataset.code]))) {
      const details = document.createElement("details");
      const summary = document.createElement("summary");
      const pre = document.createElement("pre");
      summary.textContent = title;
      pre.textContent = text;
      details.append(summary, pre);
      place.append(details);
    }
  };

  for (const task of document.querySelectorAll("details.task")) {
    task.addEventListener("toggle", () => {
      if (!task.open) return;
      task.querySelectorAll("[data-chart]").forEach(draw);
      task.querySelectorAll("[data-code]").forEach(showCode);
    });
  }

  const openTarget = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (target instanceof HTMLDetailsElement) {
      target.open = true;
      target.scrollIntoView();
    }
  };
  addEventListener("hashchange", openTarget);

  const key = (row, column) => {
    const cell = row.cells[column];
    const value = cell.dataset.value;
    if (value === undefined) return cell.textContent.trim();
    return value === "" ? null : Number(value);
  };
  const compare = (a, b) => (typeof a === "number" ? a - b : a.localeCompare(b, "en", {numeric: true}));

  for (const head of document.querySelectorAll("table.sortable th")) {
    head.tabIndex = 0;
    const sort = () => {
      const body = head.closest("table").tBodies[0];
      const column = head.cellIndex;
      const first = head.classList.contains("num") ? "descending" : "ascending";
      const other = first === "ascending" ? "descending" : "ascending";
      const order = head.getAttribute("aria-sort") === first ? other : first;
      head.parentElement.querySelectorAll("[aria-sort]").forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", order);
      const sign = order === "ascending" ? 1 : -1;
      const rows = [...body.rows].map((row) => [key(row, column), row]);
      rows.sort(([a], [b]) => (a === null) - (b === null) || (a === null ? 0 : sign * compare(a, b)));
      body.append(...rows.map(([, row]) => row));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        sort();
      }
    });
  }

  // Charts keep the width that they had on the screen unless they are told.
  const resize = () => dispatchEvent(new Event("resize"));
  addEventListener("beforeprint", resize);
  addEventListener("afterprint", resize);

  const reload = Number(document.body.dataset.reload);
  if (reload) {
    setInterval(() => document.hidden || location.reload(), 1000 * reload);
  }

  const first = [...document.querySelectorAll("[data-chart]")].filter((c) => !c.closest("details.task"));
  Promise.all(first.map(draw)).then(() => {
    openTarget();
    document.documentElement.dataset.ready = "yes";
  });
})();
