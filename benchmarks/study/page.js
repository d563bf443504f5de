"use strict";
(() => {
  const { charts, colours, labels } = JSON.parse(document.getElementById("drawn").textContent);
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "triangle-down", "x", "star", "pentagon"];
  const PATTERNS = ["", "/", ".", "\\", "x", "-", "|", "+"];
  const DASHES = ["dash", "dot", "dashdot", "longdash"];
  // The same shapes for the legend, around 0 0 and within 5 of it.
  const OUTLINES = [
    "M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0Z",
    "M-4 -4H4V4H-4Z",
    "M0 -5L5 0L0 5L-5 0Z",
    "M0 -5L5 4H-5Z",
    "M-1.6 -5H1.6V-1.6H5V1.6H1.6V5H-1.6V1.6H-5V-1.6H-1.6Z",
    "M0 5L5 -4H-5Z",
    "M-4.5 -2.5L-2.5 -4.5L0 -2L2.5 -4.5L4.5 -2.5L2 0L4.5 2.5L2.5 4.5L0 2L-2.5 4.5L-4.5 2.5L-2 0Z",
    "M0 -5L1.3 -1.6L5 -1.5L2.1 .7L3.1 4.2L0 2.2L-3.1 4.2L-2.1 .7L-5 -1.5L-1.3 -1.6Z",
    "M0 -4.6L4.4 -1.4L2.7 3.7H-2.7L-4.4 -1.4Z",
  ];
  const STROKES = [
    "",
    "M1 6L6 1M1 11L11 1M6 11L16 1M11 11L21 1M16 11L21 6",
    "M5 4h1M11 4h1M17 4h1M5 8h1M11 8h1M17 8h1",
    "M1 6L6 11M1 1L11 11M6 1L16 11M11 1L21 11M16 1L21 6",
    "M1 6L6 1M1 1L11 11M1 11L11 1M11 1L21 11M11 11L21 1M16 11L21 6M1 6L6 11M16 1L21 6",
    "M1 4H21M1 8H21",
    "M6 1V11M11 1V11M16 1V11",
    "M1 6H21M6 1V11M11 1V11M16 1V11",
  ];
  const OPTIONS = {
    displayModeBar: false,
    displaylogo: false,
    plotlyServerURL: "",
    responsive: true,
    showSendToCloud: false,
  };
  const isDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isNarrow = window.matchMedia("(max-width: 40rem)"); // as in the style
  const byTouch = window.matchMedia("(pointer: coarse)");

  // Plotly reads tags and entities in every text that it draws.
  const plain = (text) =>
    String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const value = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const scheme = () => {
    const dark = isDark.matches && !document.documentElement.dataset.printing;
    return { ink: value("--ink"), paper: value("--paper"), grid: value("--grid"), rule: value("--control"), colours: dark ? colours.dark : colours.light };
  };
  const colourOf = (style, look) => look.colours[style % look.colours.length];
  // Where the colours begin anew, the marks do not.
  const marked = (style, marks) => marks[(style + Math.floor(style / marks.length)) % marks.length];

  // Plotly breaks no lines, and cuts off what is too long.
  const broken = (text, length) => text.split(" ").reduce((lines, word) => {
    const last = lines.at(-1);
    return last !== undefined && last.length + word.length < length
      ? [...lines.slice(0, -1), `${last} ${word}`]
      : [...lines, word];
  }, []);

  // On a phone half of the chart's width has to do, so that it fits on one side of every point.
  const told = (label, text) => {
    const whole = label ? `${label}: ${text}` : text;
    if (!isNarrow.matches || whole.length <= 20) return [whole];
    return label ? [...broken(`${label}:`, 20), text] : broken(text, 20);
  };

  const bold = (text) => told("", text).map((part) => `<b>${plain(part)}</b>`);

  // What lies in one place, or so near that marks hide each other, is told together: the mouse
  // finds the uppermost alone.
  const nearIn = (lines, isLog) => {
    const height = (y) => isLog ? Math.log(y) : y;
    const heights = lines.flatMap((line) => line.y.flatMap((y, at) => [y - line.down[at], y, y + line.up[at]].map(height))).filter(Number.isFinite);
    const span = Math.max(...heights) - Math.min(...heights);
    return (y, other) => y === other || Math.abs(height(y) - height(other)) <= 0.012 * span;
  };
  const hover = (chart, line, at, lines, isNear) => {
    const cells = line.cells[at];
    const rest = labels.flatMap((label, column) =>
      cells[column] === "" ? [] : told(column ? label : chart.xTitle, cells[column]));
    const others = chart.kind === "bar" ? [] : lines.flatMap((other) => other === line ? [] : other.cells
      .filter((_, its) => other.x[its] === line.x[at] && isNear(other.y[its], line.y[at]))
      .flatMap((its) => {
        const told = labels.flatMap((label, column) =>
          column && its[column] !== "" ? [`${label}: ${its[column]}`] : []);
        const isAlike = its.every((cell, column) => cell === cells[column]);
        return [
          ...bold(isAlike ? `${other.name}: the same` : other.name),
          ...(isAlike ? [] : isNarrow.matches ? told.flatMap((text) => broken(text, 20)) : broken(told.join("; "), 60)).map(plain),
        ];
      }));
    return [...bold(line.name), ...rest.map(plain), ...others].join("<br>");
  };

  // Bars side by side, at places of their own: the room of one is known also where it has no length.
  const placesOf = (lines) => [...new Set(lines.flatMap((line) => line.x))];
  const WHOLE = 0.8; // of the room of a category
  const along = (chart) => chart.kind === "bar" && isNarrow.matches; // bars lie down
  const turned = (chart, at, length) => along(chart) ? { orientation: "h", y: at, x: length } : { x: at, y: length };
  const rangeOf = (chart, drawn) => {
    if (chart.yRange) return chart.yRange;
    const ends = drawn.flatMap((line) => line.y.flatMap((y, at) => y === null ? [] : [y - line.down[at], y + line.up[at]]));
    const [low, high] = [Math.min(0, ...ends), Math.max(0, ...ends)];
    const room = (high - low || 1) * 0.06;
    return [low && low - room, high > 0 || !low ? high + room : 0];
  };

  // The whole column of a bar names it, and a bar of no length is a number.
  const helpersOf = (chart, lines, drawn, look) => {
    const places = placesOf(lines);
    const width = WHOLE / (drawn.length || 1);
    const bars = drawn.flatMap((line, number) => line.y.map((y, at) => ({
      spot: places.indexOf(line.x[at]) - WHOLE / 2 + (number + 0.5) * width,
      said: hover(chart, line, at, drawn), y, end: y + line.up[at],
    })));
    const [low, high] = rangeOf(chart, drawn);
    const empty = bars.filter(({ y }) => y === 0);
    const spots = bars.map(({ spot }) => spot);
    return [
      {
        meta: "room", name: "", type: "bar", ...turned(chart, spots, spots.map(() => high - low)), base: low, width, offset: -width / 2,
        marker: { color: look.paper, line: { width: 0 } }, opacity: 0,
        customdata: bars.map(({ said }) => said), hovertemplate: "%{customdata}<extra></extra>",
      },
      {
        meta: "zeros", name: "", type: "scatter", mode: "text", hoverinfo: "skip", text: empty.map(() => along(chart) ? "\u00a00" : "0"),
        ...turned(chart, empty.map(({ spot }) => spot), empty.map(({ end }) => end)),
        textposition: along(chart) ? "middle right" : "top center", textfont: { size: 11, color: look.ink }, cliponaxis: false,
      },
    ];
  };

  const traceOf = (chart, line, state, look, lines, drawn) => {
    const colour = colourOf(line.style, look);
    const isNear = nearIn(drawn, state.logY);
    const trace = {
      name: plain(line.name),
      x: chart.categories ? line.x.map((x) => plain(x)) : line.x,
      y: line.y.map((y) => (state.logY && chart.kind !== "bar" && y <= 0 ? null : y)),
      customdata: line.cells.map((_, at) => hover(chart, line, at, drawn, isNear)),
      hovertemplate: "%{customdata}<extra></extra>",
      visible: state.hidden.has(line.name) ? "legendonly" : true,
    };
    if (line.up.some(Boolean) || line.down.some(Boolean)) {
      trace[along(chart) ? "error_x" : "error_y"] = {
        type: "data", symmetric: false, array: line.up, arrayminus: line.down,
        color: chart.kind === "bar" ? look.ink : colour, thickness: 1.2, width: 3,
      };
    }
    if (chart.kind === "bar") {
      const places = placesOf(lines);
      Object.assign(trace, { type: "bar" }, turned(chart, line.x.map((x) => places.indexOf(x)), line.y));
      trace.width = WHOLE / (drawn.length || 1);
      trace.offset = -WHOLE / 2 + Math.max(0, drawn.indexOf(line)) * trace.width;
      trace.marker = {
        color: line.dashed ? look.paper : colour,
        line: { color: look.ink, width: 1 },
        pattern: {
          shape: marked(line.style, PATTERNS),
          bgcolor: line.dashed ? look.paper : colour, fgcolor: look.ink, fgopacity: 0.8, size: 7, solidity: 0.2,
        },
      };
    } else {
      const joined = chart.kind === "line" || line.dashed;
      trace.type = "scatter";
      trace.cliponaxis = false; // a point on the frame is whole
      trace.mode = joined ? "lines+markers" : "markers";
      trace.line = { color: colour, width: 2, dash: line.dashed ? DASHES[line.style % DASHES.length] : "solid" };
      trace.marker = {
        symbol: marked(line.style, SYMBOLS),
        size: 8, // one for all: of points in one place plotly names the smallest, then the last
        color: line.dashed ? look.paper : colour,
        line: { color: line.dashed ? colour : look.ink, width: line.dashed ? 1.5 : 0.8 },
        maxdisplayed: joined && line.y.length > 24 ? 24 : 0,
      };
    }
    return trace;
  };

  const axis = (title, length, type, look, ticks) => ({
    title: { text: broken(title, length).map(plain).join("<br>"), standoff: 8 }, type,
    ...(type === "log" && ticks.length && { tickvals: ticks, ticktext: ticks.map((tick) => String(Number(tick.toPrecision(4)))) }),
    automargin: true, fixedrange: byTouch.matches, zeroline: false,
    color: look.ink, gridcolor: look.grid, linecolor: look.rule, showline: true, ticks: "outside", tickcolor: look.rule,
    exponentformat: "power",
  });

  // Bars stand on a linear axis, whose whole numbers have names.
  const axesOf = (chart, state, look, lines, drawn) => {
    const across = isNarrow.matches ? 28 : 90;
    const upward = isNarrow.matches ? 24 : 38;
    if (chart.kind !== "bar") {
      return {
        xaxis: axis(chart.xTitle, across, chart.categories ? "category" : state.logX ? "log" : "linear", look, chart.ticks),
        yaxis: { ...axis(chart.yTitle, upward, state.logY ? "log" : "linear", look, chart.yTicks), ...(chart.yRange && !state.logY && { range: chart.yRange }) },
      };
    }
    const lying = along(chart);
    const places = placesOf(lines);
    const names = {
      ...axis(lying ? "" : chart.xTitle, across, "linear", look, []), showgrid: false, ticklabeloverflow: "allow",
      tickvals: places.map((_, at) => at),
      ticktext: places.map((place) => lying ? broken(place.replace(/([_-])(?=.)/g, "$1\u200b "), 15).map((part) => plain(part.replaceAll("\u200b ", "").replaceAll("\u200b", ""))).join("<br>") : plain(place)),
      range: lying ? [places.length - 0.5, -0.5] : [-0.5, places.length - 0.5],
    };
    const values = { ...axis(chart.yTitle, lying ? 17 : upward, "linear", look, []), range: rangeOf(chart, drawn) };
    return lying ? { xaxis: values, yaxis: names } : { xaxis: names, yaxis: values };
  };

  const layoutOf = (chart, state, look, width, lines, drawn) => ({
    width, autosize: width === undefined,
    ...axesOf(chart, state, look, lines, drawn),
    barmode: "overlay", hovermode: "closest", showlegend: false,
    dragmode: byTouch.matches ? false : "zoom",
    margin: { l: 8, r: 12, t: 12, b: 8 },
    paper_bgcolor: look.paper, plot_bgcolor: look.paper,
    font: { color: look.ink, family: "system-ui, sans-serif", size: 13 },
    hoverlabel: { bgcolor: look.paper, bordercolor: look.ink, font: { color: look.ink, family: "system-ui, sans-serif", size: isNarrow.matches ? 11 : 13 }, align: "left", namelength: -1 },
    uirevision: `${state.choice} ${state.logX} ${state.logY} ${along(chart)}`, // a zoom outlives all but these
  });

  const svg = (name, attributes, ...children) => {
    const element = document.createElementNS("http://www.w3.org/2000/svg", name);
    Object.entries(attributes).forEach(([key, text]) => element.setAttribute(key, text));
    element.append(...children);
    return element;
  };

  const swatch = (chart, line) => {
    const look = scheme();
    const colour = colourOf(line.style, look);
    const fill = line.dashed ? "none" : colour;
    const parts = chart.kind === "bar"
      ? [
          svg("path", { d: "M1 1H21V11H1Z", fill, stroke: look.ink }),
          svg("path", { d: marked(line.style, STROKES), fill: "none", stroke: look.ink }),
        ]
      : [
          svg("path", { d: "M0 6H22", stroke: chart.kind === "line" || line.dashed ? colour : "none", "stroke-width": 2, ...(line.dashed && { "stroke-dasharray": "4 2" }) }),
          svg("path", { d: marked(line.style, OUTLINES), transform: "translate(11 6)", fill: line.dashed ? look.paper : colour, stroke: line.dashed ? colour : look.ink, "stroke-width": 0.8 }),
        ];
    return svg("svg", { width: 22, height: 12, viewBox: "0 0 22 12", "aria-hidden": "true" }, ...parts);
  };

  const start = (chart) => {
    const box = document.getElementById(chart.id);
    const plot = box.querySelector(".plot");
    const legend = box.querySelector(".legend");
    const note = box.querySelector(".note");
    const captions = [...box.querySelectorAll(".caption")];
    const tables = [...box.querySelectorAll(".scroll")];
    const state = { choice: 0, hidden: new Set(), logX: chart.logX === true, logY: chart.logY === true };
    const lines = () => chart.lines[state.choice];

    const drawLegend = () => {
      legend.replaceChildren(...lines().map((line) => {
        const button = document.createElement("button");
        button.type = "button";
        button.append(swatch(chart, line), line.name);
        button.setAttribute("aria-pressed", String(!state.hidden.has(line.name)));
        button.addEventListener("click", () => {
          if (!state.hidden.delete(line.name)) state.hidden.add(line.name);
          button.setAttribute("aria-pressed", String(!state.hidden.has(line.name)));
          draw();
        });
        const item = document.createElement("li");
        item.append(button);
        return item;
      }));
    };

    const draw = (width) => {
      const look = scheme();
      // What is measured lies above a closed form, for the eye and for the mouse.
      const layers = [...lines()].sort((one, other) => other.dashed - one.dashed);
      const drawn = lines().filter((line) => !state.hidden.has(line.name));
      const traces = layers.map((line) => traceOf(chart, line, state, look, lines(), drawn));
      if (chart.kind === "bar") traces.unshift(...helpersOf(chart, lines(), drawn, look));
      const rows = placesOf(lines()).length * (10 + 13 * drawn.length);
      plot.style.height = along(chart) ? `${Math.max(240, 110 + rows)}px` : "";
      const lost = drawn.flatMap((line) => line.y.filter((y, at) =>
        (state.logY && y !== null && y <= 0) || (state.logX && !chart.categories && line.x[at] <= 0)));
      note.textContent = lost.length
        ? `${lost.length} of the values are 0 or less: a logarithmic axis has no place for them, the table has them.`
        : "";
      return Plotly.react(plot, traces, layoutOf(chart, state, look, width, lines(), drawn), OPTIONS);
    };

    const choose = () => {
      tables.forEach((table, at) => { table.hidden = at !== state.choice; });
      captions.forEach((caption, at) => { caption.hidden = at !== state.choice; });
      plot.setAttribute("aria-label", chart.said[state.choice]);
      const caption = tables[state.choice].querySelector("caption");
      plot.setAttribute("aria-describedby", caption.id);
      plot.setAttribute("aria-details", tables[state.choice].querySelector("table").id);
      drawLegend();
      return draw();
    };

    const select = box.querySelector("select");
    select?.addEventListener("change", () => { state.choice = select.selectedIndex; choose(); });
    box.querySelectorAll("button[data-axis]").forEach((button) => {
      const name = button.dataset.axis;
      button.addEventListener("click", () => {
        state[name] = !state[name];
        button.setAttribute("aria-pressed", String(state[name]));
        draw();
      });
    });
    box.querySelectorAll(".controls, .drawn").forEach((part) => { part.hidden = false; });
    if (select) state.choice = select.selectedIndex; // a browser keeps it when a page is loaded anew
    choose();
    return { draw, drawLegend };
  };

  const started = charts.map(start);
  const redraw = (width) => started.forEach(({ draw, drawLegend }) => { drawLegend(); draw(width); });
  [isDark, isNarrow, byTouch].forEach((query) => query.addEventListener("change", () => redraw()));
  window.addEventListener("beforeprint", () => {
    document.documentElement.dataset.printing = "true";
    redraw(640);
  });
  window.addEventListener("afterprint", () => {
    delete document.documentElement.dataset.printing;
    redraw();
  });
  document.documentElement.dataset.ready = "true";
})();
