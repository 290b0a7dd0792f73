// Draws the figures, in the colors of the style sheet, and hides or shows a method in all of them at once.
(() => {
  "use strict";
  const root = document.documentElement;
  const sources = [...document.querySelectorAll('script[type="application/json"]')];
  const figures = Object.assign({}, ...sources.map((source) => JSON.parse(source.textContent)));
  const plots = [...document.querySelectorAll("[data-figure]")];
  const unpressed = document.querySelectorAll('[data-series][aria-pressed="false"]');
  const hidden = new Set([...unpressed].map((button) => button.dataset.series));
  const isTouch = matchMedia("(pointer: coarse)").matches;
  // No tool bar: buttons inside of a picture would be lost on a screen reader.
  const config = { responsive: true, displayModeBar: false };
  // Sizes of a printed figure, in pixels, by how many are side by side.
  const printed = { 1: [680, 300], 2: [325, 250], 3: [214, 220] };

  const isColor = (key) => key.toLowerCase().endsWith("color");

  // "@name" or "@name alpha" under a key for colors is a color of the style sheet; all else stays as it is.
  function painted(value, key, style) {
    if (Array.isArray(value)) return value.map((item) => (typeof item === "object" ? painted(item, "", style) : item));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, painted(item, name, style)]));
    }
    if (typeof value !== "string" || !isColor(key) || !value.startsWith("@")) return value;
    const [name, alpha] = value.slice(1).split(" ");
    const color = style.getPropertyValue("--" + name).trim();
    return alpha ? color + Math.round(255 * alpha).toString(16).padStart(2, "0") : color;
  }

  function draw(plot) {
    const style = getComputedStyle(root);
    const { data, layout } = painted(figures[plot.dataset.figure], "", style);
    for (const trace of data) trace.visible = !hidden.has(trace.meta);
    // A finger that drags scrolls the page.
    layout.dragmode = isTouch ? false : "zoom";
    if (root.classList.contains("printing")) {
      const columns = plot.closest(".three") ? 3 : plot.closest(".half, .many") ? 2 : 1;
      const [width, height] = printed[columns];
      Object.assign(layout, { width, height: Math.min(layout.height, height), autosize: false });
      layout.font.size -= 2;
      for (const axis of [layout.xaxis, layout.xaxis2, layout.yaxis]) if (axis?.title) axis.title.font.size = 10;
    } else Object.assign(layout, { autosize: true });
    return Plotly.react(plot, data, layout, config);
  }

  const drawAll = () => Promise.all(plots.map(draw));

  function toggle(event) {
    const button = event.target.closest("[data-series]");
    if (!button) return;
    const series = button.dataset.series;
    if (!hidden.delete(series)) hidden.add(series);
    for (const twin of document.querySelectorAll(`[data-series="${series}"]`)) {
      twin.setAttribute("aria-pressed", String(!hidden.has(series)));
    }
    drawAll();
  }

  // The navigation marks the section that is being read.
  function follow() {
    const links = new Map([...document.querySelectorAll(".contents a")].map((link) => [link.hash.slice(1), link]));
    const observer = new IntersectionObserver(
      (entries) => {
        for (const { target, isIntersecting } of entries) {
          if (!isIntersecting) continue;
          links.forEach((link) => link.removeAttribute("aria-current"));
          links.get(target.id).setAttribute("aria-current", "true");
        }
      },
      { rootMargin: "-20% 0px -75% 0px" },
    );
    document.querySelectorAll("main > section").forEach((section) => observer.observe(section));
  }

  function drawForPrint(isPrinting) {
    root.classList.toggle("printing", isPrinting);
    drawAll();
  }

  document.addEventListener("click", toggle);
  addEventListener("beforeprint", () => drawForPrint(true));
  addEventListener("afterprint", () => drawForPrint(false));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawAll);
  follow();

  // One figure at a time, so that the page can be read and scrolled meanwhile.
  const rest = [...plots];
  (function drawNext() {
    const plot = rest.shift();
    if (!plot) root.dataset.figures = "drawn";
    else draw(plot).then(() => setTimeout(drawNext));
  })();
})();
