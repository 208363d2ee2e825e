(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("specs").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  const wrap = (text, length) => {
    const lines = [""];
    for (const word of [].concat(text).join(" ").split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length + 1 > length) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    return lines;
  };

  // Plots take the room that axes and labels leave; fewer panels stand beside each other where they would be too narrow. No
  // plot gets narrower than its labels can bear: on a phone the figure is scrolled sideways instead.
  const fit = (chart, room, scheme, less = 0) => {
    let text = JSON.stringify(chart.spec);
    if (scheme === "dark") for (const [light, dark] of Object.entries(data.dark)) text = text.replaceAll(`"${light}"`, `"${dark}"`);
    const spec = JSON.parse(text);
    let columns = chart.columns;
    let plot = (room - chart.beside[0] - less) / columns;
    while (columns > 1 && plot < chart.least) {
      columns -= 1;
      spec.columns = columns;
      plot = (room - chart.beside[chart.columns - columns] - less) / columns;
    }
    plot = Math.floor(clamp(plot, chart.least, chart.columns > 1 ? chart.plot * 1.7 : 1000));
    if (spec.spec) {
      spec.spec.width = plot;
      // Where the name of a panel is too long for one line its parts stand below each other.
      if (spec.facet && plot < 320) spec.facet.header = { labelExpr: "split(datum.label, ' · ')", ...spec.facet.header };
    }
    else if (spec.vconcat) {
      for (const panel of spec.vconcat) {
        panel.width = plot;
        if (panel.title) panel.title = { ...panel.title, text: wrap(panel.title.text, Math.floor((plot + 12) / 7)) };
      }
    } else spec.width = plot;
    return { spec, least: plot <= chart.least };
  };

  const draw = async (scheme) => {
    const config = data.configs[scheme];
    let drawn = 0;
    for (const place of document.querySelectorAll(".chart")) {
      const chart = data.charts[place.dataset.chart];
      await new Promise((next) => setTimeout(next));
      const room = place.clientWidth;
      place.dataset.room = room;
      try {
        // A browser's font may be wider than the one that was measured: what is too much then is taken off the plots.
        for (let go = 0, less = 0; go < 4; go += 1) {
          const fitted = fit(chart, room, scheme, less);
          await window.vegaEmbed(place.querySelector(".live"), fitted.spec, {
            actions: false, ast: true, config, defaultStyle: false, hover: false, renderer: "svg", tooltip: false,
          });
          place.classList.add("on");
          const over = place.scrollWidth - place.clientWidth;
          if (over <= 0 || fitted.least) break;
          less += over;
        }
        // The place is one image with a name; its marks say nothing more to a reader than the table does.
        place.querySelector(".live svg").setAttribute("aria-hidden", "true");
        if (!drawn) performance.mark("first figure drawn");
        drawn += 1;
      } catch (error) {
        // The figure that was drawn beforehand stays.
        place.classList.remove("on");
        place.classList.add("off");
        console.warn(`${chart ? place.dataset.chart : "a figure"} could not be drawn: ${error.message}`);
      }
      hint(place);
    }
    document.documentElement.dataset.drawn = String(drawn);
  };

  // What is wider than its place says so, in words and for the keyboard too.
  const hints = new Map();
  const hint = (place) => {
    const more = place.scrollWidth > place.clientWidth + 1;
    if (more && !hints.has(place)) {
      const note = document.createElement("p");
      note.className = "more";
      note.textContent = "Scroll sideways to see all of it \u2192";
      place.before(note);
      hints.set(place, note);
    }
    if (hints.has(place)) hints.get(place).hidden = !more;
    place.tabIndex = place.scrollWidth > place.clientWidth ? 0 : -1;
  };
  const watch = new ResizeObserver((entries) => { for (const entry of entries) hint(entry.target.closest(".scroll, .chart")); });
  for (const place of document.querySelectorAll(".scroll, .chart")) {
    watch.observe(place);
    for (const inside of place.children) watch.observe(inside);
  }

  // One drawing at a time; what is asked for meanwhile is drawn once, after it.
  let busy = false, again = false;
  const redraw = async () => {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      await draw(dark.matches ? "dark" : "light");
    } while (again);
    busy = false;
  };

  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const moved = [...document.querySelectorAll(".chart")].some((place) => Number(place.dataset.room) !== place.clientWidth);
      if (moved) redraw();
    }, 150);
  });
  dark.addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
  });
  // What was drawn beforehand is painted first.
  setTimeout(redraw, 30);
})();
