// Draws the plots of the page, switches between their views, and hides a variant in all plots at once.

const plots = JSON.parse(document.getElementById("plots").textContent);
const shown = new Map(); // key of a plot -> index of its view
const hidden = new Set(); // legend groups
const config = {
  displaylogo: false, responsive: true, plotlyServerURL: "", // nothing leaves the page
  modeBarButtonsToRemove: ["sendChartToCloud", "select2d", "lasso2d"],
};

function colours() {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  return { ink: value("--ink"), soft: value("--soft"), line: value("--line"), wash: value("--wash") };
}

// The layout of a view in the colours of the page, which follow the reader's light or dark mode.
function withColours(layout) {
  const { ink, soft, line, wash } = colours();
  const axis = (given) => ({
    ...given, gridcolor: line, linecolor: line, zeroline: false, tickfont: { color: soft },
    title: { ...given.title, font: { color: soft, size: 13 } },
  });
  return {
    ...layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    modebar: { bgcolor: "rgba(0,0,0,0)", color: soft, activecolor: ink },
    font: { color: ink, family: "system-ui, sans-serif", size: 13 },
    hoverlabel: { bgcolor: wash, bordercolor: line, font: { color: ink } },
    xaxis: axis(layout.xaxis), yaxis: axis(layout.yaxis),
    shapes: layout.shapes.map((shape) => ({ ...shape, line: { ...shape.line, color: soft } })),
  };
}

// A hidden trace stays in the legend, where a click brings it back.
function traces(view) {
  return view.data.map((trace) => ({ ...trace, visible: hidden.has(trace.legendgroup) ? "legendonly" : true }));
}

function draw(plot) {
  const view = plot.views[shown.get(plot.key) ?? 0];
  const element = document.getElementById("plot-" + plot.key);
  element.style.height = view.layout.height + "px"; // otherwise a redrawn plot may overlap the next one
  return Plotly.react(element, traces(view), withColours(view.layout), config);
}

function toggle(group) {
  hidden.has(group) ? hidden.delete(group) : hidden.add(group);
  for (const button of document.querySelectorAll("button.variant"))
    if (button.dataset.variant === group) button.setAttribute("aria-pressed", String(!hidden.has(group)));
  // Only the visibility changes, so that a zoom stays.
  for (const plot of plots) {
    const element = document.getElementById("plot-" + plot.key);
    const members = element.data.flatMap((trace, i) => (trace.legendgroup === group ? [i] : []));
    if (members.length) Plotly.restyle(element, { visible: hidden.has(group) ? "legendonly" : true }, members);
  }
}

function choose(plot, index, container) {
  shown.set(plot.key, index);
  for (const button of container.querySelectorAll("button"))
    button.setAttribute("aria-pressed", String(Number(button.dataset.view) === index));
  draw(plot);
}

// Buttons for a few views, a list for many.
function controls(plot) {
  const container = document.getElementById("views-" + plot.key);
  if (plot.views.length > 6) {
    const list = document.createElement("select");
    list.setAttribute("aria-label", "what is drawn");
    plot.views.forEach((view, i) => list.add(new Option(view.name, i)));
    list.addEventListener("change", () => choose(plot, Number(list.value), container));
    container.append(list);
  } else if (plot.views.length > 1) {
    plot.views.forEach((view, i) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = view.name;
      button.dataset.view = i;
      button.setAttribute("aria-pressed", String(i === 0));
      button.addEventListener("click", () => choose(plot, i, container));
      container.append(button);
    });
  }
}

document.documentElement.classList.add("scripted");
for (const plot of plots) {
  controls(plot);
  draw(plot);
  const element = document.getElementById("plot-" + plot.key);
  element.on("plotly_legendclick", (event) => {
    toggle(event.data[event.curveNumber].legendgroup);
    return false;
  });
}
for (const button of document.querySelectorAll("button.variant"))
  button.addEventListener("click", () => toggle(button.dataset.variant));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => plots.forEach(draw));
