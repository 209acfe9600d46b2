// What all figures share: elements, numbers, colours, the tooltip, and a figure's data as a table or a file.
// Text enters the page through textContent alone, so no string of the data is ever read as HTML.

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === false || value === null || value === undefined) continue;
    if (name.startsWith('on')) made.addEventListener(name.slice(2), value);
    else made.setAttribute(name, value === true ? '' : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

let lastId = 0;
const freshId = (prefix) => `${prefix}-${++lastId}`;

const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

function onceSettled(action, milliseconds = 80) {
  let timer = 0;
  return () => {
    clearTimeout(timer);
    timer = setTimeout(action, milliseconds);
  };
}

// Arrays of floats: base64 of the upper 24 bits of each, least significant byte first (src/report/encode.h).
function decodeFloats(base64) {
  const bytes = atob(base64);
  const bits = new Uint32Array(bytes.length / 3);
  for (let i = 0, at = 0; i < bits.length; ++i, at += 3) {
    bits[i] = ((bytes.charCodeAt(at) << 8) | (bytes.charCodeAt(at + 1) << 16) | (bytes.charCodeAt(at + 2) << 24)) >>> 0;
  }
  return new Float32Array(bits.buffer);
}

const kSuperscripts = { '-': '⁻', 0: '⁰', 1: '¹', 2: '²', 3: '³', 4: '⁴', 5: '⁵', 6: '⁶', 7: '⁷', 8: '⁸', 9: '⁹' };
const powerOfTen = (exponent) => `10${[...String(exponent)].map((c) => kSuperscripts[c]).join('')}`;

function formatNumber(value, digits = 4) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '–';
  const magnitude = Math.abs(value);
  if (Number.isInteger(value) && magnitude < 1e12) return value.toLocaleString('en').replace('-', '−');
  if (magnitude !== 0 && (magnitude < 1e-4 || magnitude >= 1e9)) {
    const [mantissa, exponent] = value.toExponential(digits - 1).split('e');
    return `${Number(mantissa)} × ${powerOfTen(Number(exponent))}`.replace(/^-/, '−');
  }
  return value.toLocaleString('en', { maximumSignificantDigits: digits }).replace('-', '−');
}

// Colours. A ramp runs from the colour nearest the page to the one farthest from it, so that "more" always stands out.
const darkScheme = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => darkScheme.matches && !document.documentElement.classList.contains('printing');

const kTheme = {
  light: {
    text: '#1b1f24', muted: '#5b6570', grid: '#e9ebee', axis: '#b9bfc6',
    series: ['#2a66b1', '#d0661b', '#17857a', '#a8428f', '#9a7400', '#6552c4', '#bb3a3a', '#5f6b78'],
    ramp: ['#dfe9f1', '#a9cddb', '#5ea8bd', '#2f7ba1', '#264f85', '#231d52'],
    diverging: ['#8c3a10', '#d08a55', '#f0d9c4', '#f1f1ef', '#c3d8ea', '#5e93c4', '#1d4983'],
  },
  dark: {
    text: '#e6e9ec', muted: '#9aa4ae', grid: '#262b31', axis: '#4a525b',
    series: ['#6fa8ec', '#ef9a58', '#45c4b0', '#e083c2', '#d6b945', '#a898f5', '#f08079', '#a5b1be'],
    ramp: ['#20303d', '#23566f', '#25828c', '#57b08b', '#b7d374', '#fbf5bf'],
    diverging: ['#f5b184', '#c4713b', '#6b4128', '#2b2e31', '#27496b', '#4b87be', '#a5d0f7'],
  },
};
const theme = () => (isDark() ? kTheme.dark : kTheme.light);
const plotlyScale = (ramp) => ramp.map((colour, i) => [i / (ramp.length - 1), colour]);
const channels = (colour) => [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));

function rampColour(ramp, share) {
  const at = clamp(share, 0, 1) * (ramp.length - 1);
  const below = Math.min(Math.floor(at), ramp.length - 2);
  const [a, b] = [channels(ramp[below]), channels(ramp[below + 1])];
  return a.map((channel, i) => Math.round(channel + (b[i] - channel) * (at - below)));
}

// Relative luminance and contrast as WCAG 2 defines them.
function luminance(rgb) {
  const [r, g, b] = rgb.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}
const inkOn = (rgb) => (luminance(rgb) > 0.18 ? '#14171a' : '#ffffff');

// A strip of the colours with what its ends, and some values between, mean. marks: {at: 0 to 1, text}.
function scaleBar(label, ramp, marks, extra = null) {
  const strip = element('span', { class: 'scale-strip' });
  strip.style.background = `linear-gradient(to right, ${ramp.join(',')})`;
  const texts = marks.map(({ at, text }) => {
    const mark = element('span', { class: at < 0.03 ? 'first' : at > 0.97 ? 'last' : '' }, text);
    mark.style.left = `${at * 100}%`;
    return mark;
  });
  return element('div', { class: 'scale' }, label ? element('span', { class: 'scale-label' }, label) : null,
    element('span', { class: 'scale-body' }, strip, element('span', { class: 'scale-marks' }, ...texts)), extra);
}

// One tooltip for the page. rows: {colour, name, value}. One at a point of the window is hidden when anything is scrolled.
// One at an element is scrolled with it, and hidden while the element is out of sight.
const tooltip = element('div', { id: 'tooltip', role: 'tooltip', hidden: true });
let tooltipElement = null;

function placeTooltip(x, y) {
  const { width, height } = tooltip.getBoundingClientRect();
  const { clientWidth, clientHeight } = document.documentElement;
  const right = x + 14 + width <= clientWidth - 4;
  tooltip.style.left = `${right ? x + 14 : clamp(x - 14 - width, 4, Math.max(4, clientWidth - width - 4))}px`;
  tooltip.style.top = `${clamp(y - height - 12 < 4 ? y + 18 : y - height - 12, 4, Math.max(4, clientHeight - height - 4))}px`;
}
function placeTooltipAtElement() {
  const box = tooltipElement.getClientRects()[0];
  const frame = tooltipElement.parentElement.getBoundingClientRect();
  const top = Math.max(0, frame.top);
  const bottom = Math.min(document.documentElement.clientHeight, frame.bottom);
  tooltip.hidden = !box || box.bottom <= top || box.top >= bottom;
  if (!tooltip.hidden) placeTooltip(box.left, box.top);
}
function fillTooltip(head, rows) {
  const lines = rows.map(({ colour, name, value }) => {
    const key = element('span', { class: 'key' });
    if (colour) key.style.background = colour;
    return element('tr', {}, element('th', { scope: 'row' }, colour ? key : null, name), element('td', {}, value));
  });
  tooltip.replaceChildren(head ? element('div', { class: 'tooltip-head' }, head) : '', element('table', {}, ...lines));
  tooltip.hidden = false;
}
function showTooltipAtPoint(head, rows, x, y) {
  tooltipElement = null;
  fillTooltip(head, rows);
  placeTooltip(x, y);
}
function showTooltipAtElement(head, rows, anchor) {
  tooltipElement = anchor;
  fillTooltip(head, rows);
  placeTooltipAtElement();
}
function hideTooltip() {
  tooltip.hidden = true;
  tooltipElement = null;
}
function scrollTooltip() {
  if (tooltipElement) placeTooltipAtElement();
  else hideTooltip();
}

// Data of a figure: {header, rows: () => array of arrays, count}. Numbers stay numbers until they are written.
const csvCell = (value) => {
  const text = value === null || Number.isNaN(value) ? '' : String(value);
  return /[",\r\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
};

function saveCsv(title, data) {
  const lines = [data.header, ...data.rows()].map((row) => row.map(csvCell).join(','));
  const url = URL.createObjectURL(new Blob([lines.join('\r\n'), '\r\n'], { type: 'text/csv;charset=utf-8' }));
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-+|-+$/g, '').slice(0, 60) || 'figure';
  element('a', { href: url, download: `${name}.csv` }).click();
  setTimeout(() => URL.revokeObjectURL(url), 10000);
}

// Where a name may be broken: behind what separates its parts.
const kParts = /[^\s,:;/]*[\s,:;/]*/g;
const breakable = (text) => (text.match(kParts) ?? []).flatMap((part, i) => (i ? [element('wbr'), part] : [part]));

// The number that a cell shows, or NaN. Reports write a minus as U+2212 and thousands with commas.
const shownNumber = (text) => (/^[-−+]?[\d,]*\.?\d+(e[-+]?\d+)?%?$/i.test(text.trim())
  ? parseFloat(text.trim().replace('−', '-').replaceAll(',', '')) : NaN);

// Numbers by value, in front of texts by their letters.
function compareCells(a, b) {
  const [x, y] = [shownNumber(a), shownNumber(b)];
  if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y) || a.localeCompare(b, 'en', { numeric: true });
  return x - y;
}

// Orders the rows by a column; once more, the other way round.
function sortRows(body, headers, column) {
  const header = headers[column];
  const down = header.getAttribute('aria-sort') === 'ascending';
  const text = (row) => row.children[column].textContent;
  const rows = [...body.children].sort((a, b) => (down ? -1 : 1) * compareCells(text(a), text(b)));
  for (const one of headers) one.removeAttribute('aria-sort');
  header.setAttribute('aria-sort', down ? 'descending' : 'ascending');
  body.replaceChildren(...rows);
}

function tableElement(caption, header, rows, align) {
  const cell = (tag, text, i, more = {}) => element(tag, { class: align[i] === 'right' ? 'number' : null, ...more }, ...[text].flat());
  const body = element('tbody', {}, ...rows.map((row) => element('tr', {}, ...row.map((text, i) => (i === 0
    ? cell('th', breakable(text), i, { scope: 'row' }) : cell('td', text, i))))));
  const headers = [];
  const sorter = (text, i) => (rows.length < 2 ? text
    : element('button', { type: 'button', class: 'sorter', onclick: () => sortRows(body, headers, i) }, text));
  headers.push(...header.map((text, i) => cell('th', sorter(text, i), i, { scope: 'col' })));
  const scrolls = element('div', { class: 'table-box', role: 'region', tabindex: '0', 'aria-label': caption || 'Table' },
    element('table', { class: `data${rows.some((row) => row[0]?.length > 16) ? ' long-names' : ''}` },
      element('thead', {}, element('tr', {}, ...headers)), body));
  return scrolls;
}

const kMostRows = 200;
const kMostColumns = 40;

// "Data" below a figure, filled when it is opened first: what the figure shows as text, and as a file.
function dataDetails(title, data) {
  const body = element('div', { class: 'details-body' });
  const fill = () => {
    if (body.childElementCount) return;
    const rows = data.rows();
    const shown = rows.slice(0, kMostRows).map((row) => row.slice(0, kMostColumns));
    const cut = [];
    if (rows.length > shown.length) cut.push(`the first ${kMostRows} of ${formatNumber(rows.length)} rows`);
    if (data.header.length > kMostColumns) cut.push(`the first ${kMostColumns} of ${formatNumber(data.header.length)} columns`);
    const align = data.header.map((_, i) => (shown.every((row) => typeof row[i] !== 'string') ? 'right' : 'left'));
    const text = shown.map((row) => row.map((value) => (typeof value === 'string' ? value : formatNumber(value, 5))));
    body.append(
      element('p', { class: 'data-note' },
        element('button', { type: 'button', onclick: () => saveCsv(title, data) }, 'Save as CSV'),
        cut.length ? element('span', {}, `Shown: ${cut.join(' and ')}. The file has all.`) : null),
      tableElement(`Data of ${title || 'the figure'}`, data.header.slice(0, kMostColumns), text, align));
  };
  return element('details', { class: 'figure-data', ontoggle: fill }, element('summary', {}, 'Data'), body);
}

// The frame of every figure: title, note, what the figure adds, its data.
function figureElement(kind, block, data, ...content) {
  const id = freshId('figure');
  return element('figure', { class: `figure ${kind}`, 'aria-labelledby': block.title ? id : null },
    block.title || block.note ? element('figcaption', {},
      block.title ? element('h3', { id }, block.title) : null,
      block.note ? element('p', { class: 'note' }, block.note) : null) : null,
    ...content, data ? dataDetails(block.title, data) : null);
}
