// Pictures of tokens and pages on canvases, in the colours of the page.

// Resolves a colour of the style sheet, as it is in the present theme.
function colours() {
  const probe = document.createElement('span');
  document.body.append(probe);
  const found = {};
  for (const name of ['sink', 'kept', 'part', 'evicted', 'rule', 'muted', 'accent']) {
    probe.style.color = `var(--map-${name})`;
    found[name] = getComputedStyle(probe).color;
  }
  probe.remove();
  return found;
}

// Sizes a canvas in CSS pixels and returns its context, cleared.
function prepare(canvas, height) {
  const ratio = window.devicePixelRatio || 1;
  const width = canvas.parentElement.clientWidth;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const context = canvas.getContext('2d');
  context.scale(ratio, ratio);
  return { context, width };
}

// The largest cell, from `least` to `most` pixels, at which `count` cells fill at most `height`.
function cellSize(count, width, height, least, most) {
  for (let size = most; size > least; --size)
    if (Math.ceil(count / Math.floor(width / size)) * size <= height) return size;
  return least;
}

// One cell for each bucket of tokens, oldest first.
export function drawTokens(canvas, tokens) {
  const { view, levels } = tokens;
  const buckets = view === null ? 0 : levels.length;
  const width = canvas.parentElement.clientWidth;
  const size = cellSize(buckets, width, 190, 3, 12);
  const columns = Math.max(1, Math.floor(width / size));
  const { context } = prepare(canvas, Math.max(size, Math.ceil(buckets / columns) * size));
  canvas.cell = { size, columns };
  const colour = colours();
  const gap = size > 5 ? 1 : 0.5;
  for (let i = 0; i < buckets; ++i) {
    const { kind, share } = tokens.kept(i * view.bucket);
    const box = [(i % columns) * size, Math.floor(i / columns) * size, size - gap, size - gap];
    context.globalAlpha = 1;
    context.fillStyle = kind === 'part' ? colour.evicted : colour[kind] ?? colour.rule;
    context.fillRect(...box);
    if (kind !== 'part') continue;
    context.globalAlpha = 0.25 + 0.75 * share;
    context.fillStyle = colour.part;
    context.fillRect(...box);
  }
}

// One cell for each page, filled as far as its slots are live: a row for each table, or several rows for the only one.
export function drawPages(canvas, view) {
  const tables = view?.page_runs ?? [];
  const counts = tables.map((runs) => runs.reduce((sum, n, i) => sum + (i % 2 === 0 ? n : 0), 0));
  const width = canvas.parentElement.clientWidth;
  const most = Math.max(1, ...counts);
  const several = tables.length > 1;
  const size = several ? Math.max(2, Math.min(14, Math.floor(width / most))) : cellSize(most, width, 120, 4, 16);
  const columns = several ? Math.max(1, Math.floor(width / size)) : Math.max(1, Math.floor(width / size));
  const rows = counts.map((count) => Math.max(1, Math.ceil(count / columns)));
  const high = several ? Math.max(5, Math.min(14, Math.floor(220 / Math.max(1, rows.reduce((a, b) => a + b, 0))))) : size;
  const { context } = prepare(canvas, Math.max(high, rows.reduce((a, b) => a + b, 0) * high));
  const colour = colours();
  let top = 0;
  tables.forEach((runs, table) => {
    let page = 0;
    for (let i = 0; i < runs.length; i += 2) {
      for (let n = runs[i]; n > 0; --n, ++page) {
        const x = (page % columns) * size;
        const y = (top + Math.floor(page / columns)) * high;
        const full = (high - 1) * Math.min(1, runs[i + 1] / view.page_tokens);
        context.fillStyle = colour.evicted;
        context.fillRect(x, y, size - 1, high - 1);
        context.fillStyle = colour.kept;
        context.fillRect(x, y + high - 1 - full, size - 1, full);
      }
    }
    top += rows[table];
  });
  return counts.reduce((sum, n) => sum + n, 0);
}

// Tokens kept against tokens seen: points {seen, kept}.
export function drawGrowth(canvas, points) {
  const high = 110;
  const { context, width } = prepare(canvas, high);
  const colour = colours();
  const last = points.at(-1);
  const most = Math.max(last.seen, 1);
  const x = (seen) => (seen / most) * (width - 2) + 1;
  const y = (kept) => high - 2 - (kept / most) * (high - 8);
  context.beginPath();
  context.moveTo(x(0), y(0));
  for (const point of points) context.lineTo(x(point.seen), y(point.kept));
  context.lineTo(x(last.seen), y(0));
  context.closePath();
  context.globalAlpha = 0.25;
  context.fillStyle = colour.kept;
  context.fill();
  context.globalAlpha = 1;
  context.lineWidth = 2;
  context.strokeStyle = colour.kept;
  context.beginPath();
  context.moveTo(x(0), y(0));
  for (const point of points) context.lineTo(x(point.seen), y(point.kept));
  context.stroke();
  context.setLineDash([4, 4]);
  context.lineWidth = 1;
  context.strokeStyle = colour.muted;
  context.beginPath();
  context.moveTo(x(0), y(0));
  context.lineTo(x(most), y(most));
  context.stroke();
  context.setLineDash([]);
}
