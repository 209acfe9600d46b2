// Lines and bars, and what every chart needs around plotly.js: when it is drawn, its size, zoom, legend and colours.
// Labels, legend and tooltip are elements of the page, so that they wrap, are reached by the keyboard and stay text.

const kFont = 'system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif';
const charts = [];

// plotly.js reads a small markup in the texts that it draws itself (names on axes).
const plainForPlotly = (text) => text.replace(/&/g, '&amp;').replace(/</g, '&lt;').replace(/>/g, '&gt;');

const measuring = document.createElement('canvas').getContext('2d');
function textWidth(text) {
  measuring.font = `12px ${kFont}`;
  return measuring.measureText(text).width;
}

// The text, or as much of its start and its end as fits: names of one family often differ in the end alone.
function fitText(text, pixels) {
  const letters = [...text];
  if (textWidth(text) <= pixels) return text;
  for (let kept = letters.length - 1; kept > 1; --kept) {
    const fitted = `${letters.slice(0, Math.ceil(kept / 2)).join('')}…${letters.slice(letters.length - Math.floor(kept / 2)).join('')}`;
    if (textWidth(fitted) <= pixels) return fitted;
  }
  return '…';
}

// The text in as few lines as fit, at most two, broken behind what separates its parts.
function fitLines(text, pixels) {
  const lines = [''];
  for (const part of text.match(kParts) ?? []) {
    const line = lines[lines.length - 1];
    if (line !== '' && lines.length < 2 && textWidth(line + part) > pixels) lines.push(part);
    else lines[lines.length - 1] += part;
  }
  return lines.map((line) => plainForPlotly(fitText(line.trim(), pixels))).join('<br>');
}

function axisLayout(log, count, more) {
  const { muted, grid, axis } = theme();
  return {
    type: log ? 'log' : 'linear', nticks: count, automargin: true, zeroline: false, showgrid: false, gridcolor: grid,
    showline: false, linecolor: axis, ticks: '', tickcolor: axis, tickfont: { color: muted, size: 12 }, tickangle: 0,
    ...(log ? { tickformat: ',~g', tickangle: 'auto' } : { exponentformat: 'power', minexponent: 5, separatethousands: true }), ...more,
  };
}

// How many ticks to ask for on an axis of so many pixels, so that labels of `each` pixels do not touch. plotly.js widens the
// range by up to a tenth. On a logarithmic axis it labels powers of ten for less than 1.4 ticks a decade, 1, 2, 5 for less
// than 3.3, and 1, 2, 3 … 9 from there on; on one that is shorter than a decade, steps of one size, the last of which are short.
function tickCount(log, ends, pixels, each, most) {
  const count = clamp(Math.round(pixels / each), 2, most);
  if (!log || !ends || ends[0] === ends[1]) return count;
  const decades = Math.log10(ends[1] / ends[0]);
  const decade = pixels / decades;
  if (decade <= 2.5 * each) return clamp(Math.ceil(decades * 1.15), 2, count);
  if (decades > 0.9) return clamp(Math.floor(decades * 3.3), 1, count);
  const step = ends[1] * (10 ** (each / decade) - 1);
  return clamp(Math.floor((ends[1] - ends[0]) / step / 1.5), 1, count);
}

// On a logarithmic axis with room for it, ticks where the points are: 1, 2, 4, 8 rather than 1, 2, 3 … 9, 10. Not where
// labels would be long, or lie on each other.
function ticksAtPoints(log, series, pixels) {
  if (!log) return {};
  const places = [...new Set(series.flatMap(({ x }) => x.filter(usableOn(true))))].sort((a, b) => a - b);
  if (places.length < 2 || places.some((place) => Number(place.toPrecision(3)) !== place)) return {};
  const each = pixels / Math.log(places.at(-1) / places[0]);
  const apart = places.slice(1).every((place, i) => Math.log(place / places[i]) * each >= 40);
  return apart ? { tickmode: 'array', tickvals: places } : {};
}

function baseLayout(width, height) {
  const { muted } = theme();
  return {
    width, height, autosize: false, paper_bgcolor: 'rgba(0,0,0,0)', plot_bgcolor: 'rgba(0,0,0,0)',
    margin: { l: 8, r: 24, t: 12, b: 8, pad: 0 }, showlegend: false, uirevision: 'keep', hoverdistance: 60,
    font: { family: kFont, size: 12, color: muted }, dragmode: 'zoom',
  };
}

// A chart in the page. `parts` has: label (for assistive technology), size(width) => {width, height, ...},
// draw(size) => {traces, layout}, tip(points) => {head, rows}, above and below (elements), zooms, reversed (whether the y axis
// runs downwards) and zoomed(plot), told after each change of the axes.
class Chart {
  constructor(parts) {
    this.parts = parts;
    this.drawn = false;
    this.width = 0;
    this.touchZoom = false;
    this.plot = element('div', { class: 'plot', role: 'img', 'aria-label': parts.label });
    this.reset = element('button', { type: 'button', hidden: true, onclick: () => this.unzoom() }, 'Reset zoom');
    this.zoom = element('button', { type: 'button', class: 'touch-only', 'aria-pressed': 'false', onclick: () => this.toggleZoom() },
      'Zoom by touch');
    // Over the plot on touch screens: plotly.js would keep fingers from scrolling the page.
    this.cover = element('div', { class: 'cover', onclick: (event) => this.tapped(event) });
    this.element = element('div', { class: 'chart' }, parts.above, element('div', { class: 'plot-area' }, this.plot, this.cover), parts.below,
      parts.zooms ? element('div', { class: 'chart-tools' }, this.zoom, this.reset) : null);
    charts.push(this);
  }

  // Charts are drawn when they come near the window: a page of a hundred opens as fast as one of three.
  watch() {
    this.reserve();
    new IntersectionObserver((entries, observer) => {
      if (!entries.some((entry) => entry.isIntersecting)) return;
      observer.disconnect();
      this.draw();
    }, { rootMargin: '600px' }).observe(this.plot);
    new ResizeObserver(onceSettled(() => {
      const width = this.element.clientWidth;
      if (!width || width === this.width || document.documentElement.classList.contains('printing')) return;
      if (this.drawn) this.draw();
      else this.reserve();
    })).observe(this.element);
  }

  reserve() {
    this.width = this.element.clientWidth;
    this.plot.style.minHeight = `${this.parts.size(this.width).height}px`;
  }

  draw() {
    this.reserve();
    if (this.width <= 0) return;
    const { traces, layout } = this.parts.draw(this.parts.size(this.width));
    if (!this.parts.zooms || (matchMedia('(pointer: coarse)').matches && !this.touchZoom)) layout.dragmode = false;
    const config = { displayModeBar: false, doubleClick: 'reset', showTips: false };
    Plotly.react(this.plot, traces, layout, config);
    if (!this.drawn) this.listen();
    this.drawn = true;
  }

  listen() {
    this.plot.on('plotly_hover', ({ points, event }) => {
      const tip = this.parts.tip(points);
      if (tip && event) showTooltipAtPoint(tip.head, tip.rows, event.clientX, event.clientY);
    });
    this.plot.on('plotly_unhover', hideTooltip);
    this.plot.on('plotly_relayout', (change) => {
      const keys = Object.keys(change);
      if (keys.some((key) => /axis\.range/.test(key))) this.reset.hidden = false;
      if (keys.some((key) => /axis\.autorange/.test(key))) this.reset.hidden = true;
      this.parts.zoomed?.(this.plot);
    });
  }

  tapped({ clientX, clientY }) {
    const area = this.plot.querySelector('.nsewdrag');
    for (const type of ['mouseout', 'mousemove']) area?.dispatchEvent(new MouseEvent(type, { clientX, clientY, bubbles: true }));
  }

  unzoom() {
    this.reset.hidden = true;
    Plotly.relayout(this.plot, { 'xaxis.autorange': true, 'yaxis.autorange': this.parts.reversed ? 'reversed' : true });
  }

  toggleZoom() {
    this.touchZoom = !this.touchZoom;
    this.zoom.setAttribute('aria-pressed', String(this.touchZoom));
    this.cover.hidden = this.touchZoom;
    if (this.drawn) Plotly.relayout(this.plot, { dragmode: this.touchZoom ? 'zoom' : false });
  }
}

const redrawCharts = () => charts.filter((chart) => chart.drawn).forEach((chart) => chart.draw());

// Legend and visibility of series. Names that repeat or are empty stay apart by their keys.
class Legend {
  constructor(names, kind) {
    this.names = names;
    this.hidden = new Set();
    this.onchange = () => {};
    this.keys = names.map(() => element('span', { class: `key ${kind}` }));
    this.buttons = names.map((name, i) => element('button', {
      type: 'button', class: 'legend-entry', 'aria-pressed': 'true', title: 'Show or hide; double-click: this one alone',
      onclick: () => this.set(i, this.hidden.has(i)), ondblclick: () => this.only(i),
    }, this.keys[i], element('span', {}, name || `series ${i + 1}`)));
    this.element = names.length > 1
      ? element('div', { class: 'legend', role: 'group', 'aria-label': 'Series' }, ...this.buttons) : null;
  }

  set(i, visible) {
    this.hidden[visible ? 'delete' : 'add'](i);
    this.changed();
  }

  only(i) {
    const alone = this.names.every((_, other) => other === i || this.hidden.has(other));
    this.hidden = new Set(alone ? [] : this.names.map((_, other) => other).filter((other) => other !== i));
    this.changed();
  }

  changed() {
    this.buttons.forEach((button, i) => button.setAttribute('aria-pressed', String(!this.hidden.has(i))));
    this.onchange();
  }

  paint() {
    this.keys.forEach((key, i) => {
      key.style.setProperty('--colour', seriesColour(i));
      key.style.setProperty('--dash', kDashes[dashOf(i)]);
    });
  }
}

// Colours repeat after eight series, with another dash.
const kDashes = ['solid', 'dashed', 'dotted'];
const kPlotlyDashes = ['solid', 'dash', 'dot'];
const seriesColour = (i) => theme().series[i % theme().series.length];
const dashOf = (i) => Math.floor(i / theme().series.length) % kDashes.length;

function extent(lists, usable = Number.isFinite) {
  let [low, high] = [Infinity, -Infinity];
  for (const list of lists) {
    for (const value of list) {
      if (value === null || !usable(value)) continue;
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  return low <= high ? [low, high] : null;
}
const range = (ends) => (ends ? `from ${formatNumber(ends[0])} to ${formatNumber(ends[1])}` : 'empty');
const hasPoint = (xs, ys, xUsable, yUsable) => ys.some((y, i) => y !== null && yUsable(y) && xs[i] !== null && xUsable(xs[i]));
const usableOn = (log) => (log ? (value) => value > 0 : Number.isFinite);
// In place of a chart whose axes would be invented.
const nothingToShow = (kind, block, why, data) => ({ figure: figureElement(kind, block, data, element('p', { class: 'note' }, why)) });
const axisName = (text, kind) => (text ? element('div', { class: `axis-name ${kind}` }, text) : null);

function lineData(block) {
  const { series } = block;
  const first = series[0]?.x ?? [];
  const shared = series.every(({ x }) => x.length === first.length && x.every((value, i) => value === first[i]));
  const x = block.x_label || 'x';
  if (shared) {
    return { header: [x, ...series.map(({ name }) => name)], rows: () => first.map((at, i) => [at, ...series.map(({ y }) => y[i])]) };
  }
  return {
    header: ['series', x, block.y_label || 'y'],
    rows: () => series.flatMap((one) => one.x.map((at, i) => [one.name, at, one.y[i]])),
  };
}

function lineTip(block, points) {
  const [{ x }] = points;
  const rows = points.map((point) => ({
    colour: seriesColour(point.curveNumber),
    name: (block.series[point.curveNumber].name || block.y_label) + (point.x === x ? '' : ` (at ${formatNumber(point.x)})`),
    value: formatNumber(point.y),
    order: point.y,
  }));
  rows.sort((a, b) => b.order - a.order);
  return { head: `${block.x_label || 'x'}: ${formatNumber(x, 6)}`, rows };
}

function lineChart(block) {
  const usable = block.series.some(({ x, y }) => hasPoint(x, y, usableOn(block.x_log), usableOn(block.y_log)));
  if (!usable) return nothingToShow('line-chart', block, 'There is no point to draw.', block.series.length ? lineData(block) : null);
  const legend = new Legend(block.series.map(({ name }) => name), 'line');
  const describe = `Lines: ${block.y_label || 'y'} over ${block.x_label || 'x'}, ${block.series.length} series, `
    + `x ${range(extent(block.series.map(({ x }) => x)))}, y ${range(extent(block.series.map(({ y }) => y)))}`;
  const ends = (axis, log) => extent(block.series.map((one) => one[axis]), usableOn(log));
  const draw = ({ width, height }) => {
    legend.paint();
    const { muted } = theme();
    const [xEnds, yEnds] = [ends('x', block.x_log), ends('y', block.y_log)];
    const traces = block.series.map(({ x, y }, i) => ({
      type: 'scatter', x, y, hoverinfo: 'none', connectgaps: false, visible: !legend.hidden.has(i),
      mode: x.length > 40 ? 'lines' : 'lines+markers', marker: { size: 5, color: seriesColour(i) },
      line: { color: seriesColour(i), width: 1.75, dash: kPlotlyDashes[dashOf(i)] },
    }));
    const layout = {
      ...baseLayout(width, height), hovermode: 'x',
      xaxis: axisLayout(block.x_log, tickCount(block.x_log, xEnds, width - 60, 70, 9), {
        showline: true, ticks: 'outside', ticklen: 4, showspikes: true, spikemode: 'across', spikethickness: 1,
        spikedash: 'solid', spikecolor: muted, spikesnap: 'hovered data', ...ticksAtPoints(block.x_log, block.series, width - 60),
      }),
      yaxis: axisLayout(block.y_log, tickCount(block.y_log, yEnds, height - 50, 34, 8), { showgrid: true, ticklabelstandoff: 6 }),
    };
    return { traces, layout };
  };
  const chart = new Chart({
    label: describe, zooms: true, draw, tip: (points) => lineTip(block, points),
    size: (width) => ({ width, height: clamp(Math.round(width * 0.42), 230, 360) }),
    above: element('div', {}, legend.element, axisName(block.y_label, 'y')), below: axisName(block.x_label, 'x'),
  });
  legend.onchange = () => chart.draw();
  const figure = figureElement('line-chart', block, lineData(block), chart.element);
  return { figure, chart };
}

const kWidestBar = 52;

// Writes numbers that stand side by side with equally many decimals, unless their sizes are decades apart.
function alike(values, log) {
  const decimals = Math.max(0, ...values.map((value) => (formatNumber(value).split('.')[1] ?? '').length));
  const ends = extent([values.map(Math.abs)], (value) => value > 0);
  if (log || !ends || decimals > 3 || ends[1] >= 1e5) return (value) => (value === null ? '' : formatNumber(value));
  const form = { minimumFractionDigits: decimals, maximumFractionDigits: decimals };
  return (value) => (value === null ? '' : value.toLocaleString('en', form).replace('-', '−'));
}

function barChart(block) {
  const { categories, series } = block;
  const data = {
    header: [block.category_label || 'category', ...series.map(({ name }) => name || block.value_label || 'value')],
    rows: () => categories.map((name, i) => [name, ...series.map(({ values }) => values[i])]),
  };
  const ends = extent(series.map(({ values }) => values), usableOn(block.log));
  if (!ends) return nothingToShow('bar-chart', block, 'There is no bar to draw.', categories.length ? data : null);
  const legend = new Legend(series.map(({ name }) => name), 'box');
  const longest = Math.max(0, ...categories.map(textWidth));
  const lies = (width) => longest > ((width - 60) / Math.max(1, categories.length)) * 0.92;
  const shown = () => series.length - legend.hidden.size;
  const size = (width) => ({
    width, height: lies(width) ? 44 + categories.length * Math.max(36, 14 + 18 * Math.max(1, series.length)) : clamp(Math.round(width * 0.36), 220, 320),
  });
  const draw = ({ width, height }) => {
    legend.paint();
    const flat = lies(width);
    const across = (flat ? height - 44 : width - 60) / Math.max(1, categories.length);
    const labelled = categories.length * shown() <= 24 && (flat || across / Math.max(1, shown()) > 44);
    const at = categories.map((_, i) => i);
    const write = alike(series.flatMap(({ values }) => values), block.log);
    const traces = series.map(({ values }, i) => ({
      type: 'bar', orientation: flat ? 'h' : 'v', x: flat ? values : at, y: flat ? at : values, hoverinfo: 'none',
      visible: !legend.hidden.has(i), marker: { color: seriesColour(i), opacity: dashOf(i) ? 0.6 : 1 },
      text: labelled ? values.map(write) : undefined, textposition: 'outside',
      textangle: 0, textfont: { color: theme().muted, size: 12 }, cliponaxis: false,
    }));
    const names = {
      tickmode: 'array', tickvals: at, ticktext: categories.map((name) => fitLines(name, flat ? Math.min(width * 0.4, 280) : across)),
      tickfont: { color: theme().text, size: 12 }, showline: true, fixedrange: true,
      range: flat ? [categories.length - 0.5, -0.5] : [-0.5, categories.length - 0.5], ticklabelstandoff: 4,
    };
    const values = { showgrid: true, fixedrange: true, ticklabelstandoff: 4 };
    const layout = {
      ...baseLayout(width, height), hovermode: flat ? 'y' : 'x', bargroupgap: 0.06,
      bargap: clamp(1 - (Math.max(1, shown()) * kWidestBar) / across, 0.28, 0.9),
      xaxis: flat ? axisLayout(block.log, tickCount(block.log, ends, width * 0.6, 90, 7), values) : axisLayout(false, 0, names),
      yaxis: flat ? axisLayout(false, 0, names) : axisLayout(block.log, tickCount(block.log, ends, height - 50, 36, 6), values),
    };
    if (labelled) layout.margin[flat ? 'r' : 't'] = flat ? 54 : 22;
    return { traces, layout };
  };
  const tip = (points) => {
    const i = points[0].pointNumber;
    return {
      head: categories[i],
      rows: series.map(({ name, values }, s) => ({ colour: seriesColour(s), name: name || block.value_label, value: formatNumber(values[i]), s }))
        .filter(({ s }) => !legend.hidden.has(s)),
    };
  };
  const chart = new Chart({
    label: `Bars: ${block.value_label || 'value'} of ${categories.length} ${block.category_label || 'categories'}, ${series.length} series, `
      + range(extent(series.map(({ values }) => values))),
    zooms: false, draw, tip, size, above: element('div', {}, legend.element, axisName(block.value_label, 'y')),
    below: axisName(block.category_label, 'x'),
  });
  legend.onchange = () => chart.draw();
  return { figure: figureElement('bar-chart', block, data, chart.element), chart };
}
