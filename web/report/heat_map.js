// Heat maps: a matrix as colours, drawn by plotly.js as one image; axes, scale and tooltip say what a cell stands for.

// What a cell's row or column is called: its name, a number, or the numbers it was made of.
function cellName(axis, i) {
  if (axis.names.length) return axis.names[i];
  const first = axis.first + i * axis.step;
  return axis.step === 1 ? formatNumber(first) : `${formatNumber(first)} to ${formatNumber(first + axis.step - 1)}`;
}

// Ticks of one axis: names thinned out to what fits, or plotly's own numbers.
function heatAxis(axis, count, pixels, vertical) {
  const common = { ticks: 'outside', ticklen: 3 };
  if (!axis.names.length) {
    const each = vertical ? 22 : 34;
    const whole = axis.step === 1 && count <= 30 ? { tick0: axis.first, dtick: Math.max(1, roundStep((each * count) / pixels)) } : {};
    return axisLayout(false, clamp(Math.round(pixels / 60), 2, 9), { ...common, ...whole });
  }
  const widest = Math.max(...axis.names.map(textWidth));
  const each = vertical ? 15 : Math.min(widest, 90) + 10;
  const every = Math.max(1, Math.ceil((each * count) / Math.max(1, pixels)));
  const shown = axis.names.map((_, i) => i).filter((i) => i % every === 0);
  return axisLayout(false, 0, {
    ...common, tickmode: 'array', tickvals: shown,
    ticktext: shown.map((i) => plainForPlotly(fitText(axis.names[i], vertical ? 110 : 90))),
  });
}

const kMostDecades = 6;

// The ends of the colour scale, and how a value becomes a place on it.
function colourEnds(block, values) {
  const log = block.scale === 'log';
  const found = extent([values], log ? (value) => value > 0 : Number.isFinite) ?? (log ? [0.1, 1] : [0, 1]);
  let [low, high] = [block.low ?? found[0], block.high ?? found[1]];
  if (block.scale === 'diverging') {
    high = block.high ?? Math.max(Math.abs(found[0]), Math.abs(found[1]));
    low = -high;
  }
  if (log && block.low === null) low = Math.max(low, high * 10 ** -kMostDecades);
  if (!(low < high)) [low, high] = log ? [low / 10, low] : [low, low + 1];
  const place = log ? Math.log10 : (value) => value;
  return { low, high, from: place(low), to: place(high), log };
}

// The nearest of 1, 2 and 5 times a power of ten above.
function roundStep(atLeast) {
  const power = 10 ** Math.floor(Math.log10(atLeast));
  return power * ([1, 2, 5].find((digit) => digit * power >= atLeast * 0.999) ?? 10);
}

function scaleMarks({ low, high, from, to, log }, narrow) {
  const ends = [{ at: 0, text: formatNumber(low, 3) }, { at: 1, text: formatNumber(high, 3) }];
  if (!log) {
    const step = roundStep((high - low) / (narrow ? 3 : 4));
    for (let n = Math.ceil(low / step); n * step < high; ++n) {
      const at = (n * step - low) / (high - low);
      if (at > 0.14 && at < 0.86) ends.push({ at, text: formatNumber(n * step || 0, 3) });
    }
    return ends;
  }
  const decades = [];
  for (let power = Math.ceil(from - 1e-9); power <= to + 1e-9; ++power) decades.push(power);
  const every = Math.ceil(decades.length / (narrow ? 4 : 7));
  if (decades.length < 2) return ends;
  return decades.filter((_, i) => (decades.length - 1 - i) % every === 0).map((power) => ({
    at: (power - from) / (to - from), text: power === 0 ? '1' : powerOfTen(power),
  }));
}

// What plotly draws: rows of values on the scale. Below a logarithmic scale lies its lowest colour.
function heatRows(block, values, ends) {
  const drawn = ends.log ? values.map((value) => (Number.isNaN(value) ? NaN : Math.log10(Math.max(value, ends.low)))) : values;
  return Array.from({ length: block.rows }, (_, row) => drawn.subarray(row * block.columns, (row + 1) * block.columns));
}

function heatSummary(block, values) {
  const ends = extent([values]);
  let empty = 0;
  for (const value of values) empty += Number.isNaN(value) ? 1 : 0;
  const counted = `${formatNumber(block.rows)} × ${formatNumber(block.columns)} cells`;
  return `${counted}, ${block.value_label || 'values'} ${range(ends)}${empty ? `, ${formatNumber(empty)} empty` : ''}`;
}

const kLargestCell = 56;

// Cells are square where both sides have about as many; else the map is as wide as there is room.
function heatSize(block) {
  const gutter = { left: block.y.names.length ? Math.min(110, Math.max(...block.y.names.map(textWidth))) + 14 : 48, bottom: 30 };
  return (width) => {
    const ratio = block.rows / Math.max(1, block.columns);
    const most = block.rows > 256 ? 640 : block.rows > 24 ? 520 : 400;
    if (ratio > 2.5 || ratio < 0.4) {
      const height = clamp(Math.max(block.rows * 16, (width - gutter.left) * Math.min(1, ratio)), 120, most) + gutter.bottom;
      return { width, height: Math.round(height), gutter };
    }
    const side = Math.min(width - gutter.left - 14, most / Math.max(1, ratio), Math.max(160, block.columns * kLargestCell));
    return { width: Math.round(side + gutter.left + 14), height: Math.round(side * ratio + gutter.bottom + 12), gutter };
  };
}

// Where a pixel shows more than one cell, the browser shall mix them; left to choose one, it would lose thin lines.
function smoothing(plot, block, width, height) {
  const shown = (axis, range, count) => (range ? Math.abs(range[1] - range[0]) / (axis.names.length ? 1 : axis.step) : count);
  const { xaxis, yaxis } = plot?.layout ?? {};
  const dense = shown(block.x, xaxis?.range, block.columns) > width * devicePixelRatio
    || shown(block.y, yaxis?.range, block.rows) > height * devicePixelRatio;
  return dense ? 'fast' : false;
}

function heatMap(block) {
  const values = decodeFloats(block.values);
  if (!values.some(Number.isFinite)) return nothingToShow('heat-map', block, 'There is no cell to draw.', null);
  const ends = colourEnds(block, values);
  const rows = heatRows(block, values, ends);
  const scale = element('div');
  const ramp = () => (block.scale === 'diverging' ? theme().diverging : theme().ramp);
  const centre = (axis) => (axis.names.length ? { start: 0, step: 1 }
    : { start: axis.first + (axis.step - 1) / 2, step: axis.step });
  const hasEmpty = values.some(Number.isNaN);
  const paintScale = (width) => {
    const empty = hasEmpty ? element('span', { class: 'scale-missing' }, element('span', { class: 'key empty' }), 'empty') : null;
    scale.replaceChildren(scaleBar(block.value_label, ramp(), scaleMarks(ends, width < 420), empty));
  };
  const drawnOn = () => (chart.drawn ? chart.plot : null);
  const size = heatSize(block);
  const draw = ({ width, height, gutter }) => {
    paintScale(width);
    const [x, y] = [centre(block.x), centre(block.y)];
    const traces = [{
      type: 'heatmap', z: rows, x0: x.start, dx: x.step, y0: y.start, dy: y.step, zmin: ends.from, zmax: ends.to, zauto: false,
      colorscale: plotlyScale(ramp()), showscale: false, hoverinfo: 'none', hoverongaps: false,
      zsmooth: smoothing(drawnOn(), block, width - gutter.left, height - gutter.bottom),
    }];
    const layout = {
      ...baseLayout(width, height), hovermode: 'closest', margin: { l: gutter.left, r: 14, t: 12, b: gutter.bottom },
      xaxis: { ...heatAxis(block.x, block.columns, width - gutter.left, false), automargin: false },
      yaxis: { ...heatAxis(block.y, block.rows, height - gutter.bottom, true), automargin: false, autorange: 'reversed' },
    };
    return { traces, layout };
  };
  const tip = ([{ pointNumber: [row, column] }]) => ({
    head: null,
    rows: [
      { name: block.y.label || 'row', value: cellName(block.y, row) },
      { name: block.x.label || 'column', value: cellName(block.x, column) },
      { name: block.value_label || 'value', value: formatNumber(values[row * block.columns + column]) },
    ],
  });
  const zoomed = (plot) => {
    const { width, height, gutter } = size(chart.width);
    const zsmooth = smoothing(plot, block, width - gutter.left, height - gutter.bottom);
    if (zsmooth !== plot.data[0].zsmooth) Plotly.restyle(plot, { zsmooth });
  };
  const summary = heatSummary(block, values);
  const chart = new Chart({
    label: `Heat map: ${block.y.label || 'rows'} by ${block.x.label || 'columns'}, ${summary}`, zooms: true, reversed: true, draw, tip,
    size, zoomed, above: element('div', {}, scale, axisName(block.y.label, 'y')), below: axisName(block.x.label, 'x'),
  });
  if (chart.parts.below) chart.parts.below.style.paddingLeft = `${chart.parts.size(chart.element.clientWidth || 600).gutter.left}px`;
  paintScale(chart.element.clientWidth || 420);
  const data = {
    header: [block.y.label || 'row', ...Array.from({ length: block.columns }, (_, i) => cellName(block.x, i))],
    rows: () => Array.from({ length: block.rows }, (_, row) => [cellName(block.y, row),
      ...Array.from(values.subarray(row * block.columns, (row + 1) * block.columns), (value) => Number(value.toPrecision(5)))]),
  };
  const figure = figureElement('heat-map', block, data, chart.element);
  // Small maps stand two to a row where there is room.
  if (block.columns <= 64 && block.rows <= 64 && block.columns <= 2.5 * block.rows) figure.classList.add('small');
  return { figure, chart };
}
