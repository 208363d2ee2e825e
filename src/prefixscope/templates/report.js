(() => {
  "use strict";
  const data = JSON.parse(document.getElementById("specs").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const clamp = (value, low, high) => Math.min(Math.max(value, low), high);

  const wrap = (text, length) => {
    const lines = [""];
    for (const word of String(text).split(" ")) {
      const last = lines[lines.length - 1];
      if (last && last.length + word.length + 1 > length) lines.push(word);
      else lines[lines.length - 1] = last ? `${last} ${word}` : word;
    }
    return lines;
  };

  // Plots take the room that axes and labels leave; panels stand below each other where two would be too narrow.
  const fit = (chart, room, scheme) => {
    let text = JSON.stringify(chart.spec);
    if (scheme === "dark") for (const [light, dark] of Object.entries(data.dark)) text = text.replaceAll(`"${light}"`, `"${dark}"`);
    const spec = JSON.parse(text);
    let columns = chart.columns;
    let plot = (room - chart.beside[0]) / columns;
    if (columns > 1 && plot < 170) {
      columns = 1;
      spec.columns = 1;
      plot = room - chart.beside[1];
    }
    plot = Math.floor(clamp(plot, 110, chart.columns > 1 ? chart.plot * 1.7 : 1000));
    if (spec.spec) spec.spec.width = plot;
    else if (spec.vconcat) {
      for (const panel of spec.vconcat) {
        panel.width = plot;
        if (panel.title) panel.title = { ...panel.title, text: wrap(panel.title.text, Math.floor((plot + 60) / 6.6)) };
      }
    } else spec.width = plot;
    return spec;
  };

  const draw = async (scheme) => {
    const config = data.configs[scheme];
    let drawn = 0;
    for (const place of document.querySelectorAll(".chart")) {
      const chart = data.charts[place.dataset.chart];
      const room = place.clientWidth;
      place.dataset.room = room;
      try {
        await window.vegaEmbed(place, fit(chart, room, scheme), {
          actions: false, ast: true, config, defaultStyle: false, hover: false, renderer: "svg", tooltip: false,
        });
        // The place is one image with a name; its marks say nothing more to a reader than the table does.
        place.querySelector("svg").setAttribute("aria-hidden", "true");
        drawn += 1;
      } catch (error) {
        place.textContent = `This figure could not be drawn (${error.message}); the table holds its numbers.`;
      }
    }
    document.documentElement.dataset.drawn = String(drawn);
  };

  // One drawing at a time; what is asked for meanwhile is drawn once, after it.
  let busy = false, again = false, forced = null;
  const redraw = async () => {
    if (busy) { again = true; return; }
    busy = true;
    do {
      again = false;
      await draw(forced || (dark.matches ? "dark" : "light"));
    } while (again);
    busy = false;
  };

  let timer = 0;
  window.addEventListener("resize", () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const moved = [...document.querySelectorAll(".chart")].some((place) => Number(place.dataset.room) !== place.clientWidth);
      if (moved && !forced) redraw();
    }, 150);
  });
  dark.addEventListener("change", redraw);
  window.addEventListener("beforeprint", () => {
    for (const details of document.querySelectorAll("details")) details.open = true;
    if (dark.matches) { forced = "light"; redraw(); }
  });
  window.addEventListener("afterprint", () => {
    if (forced) { forced = null; redraw(); }
  });
  redraw();
})();
