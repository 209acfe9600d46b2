// Builds the page from the data block.

const report = JSON.parse(document.getElementById('report-data').textContent);
const repaints = [];

const paragraphs = (text) => text.split(/\n\s*\n/).map((part) => part.trim()).filter(Boolean)
  .map((part) => element('p', { class: 'text' }, part));

const kFigures = {
  paragraph: (block) => ({ figure: element('div', { class: 'prose' }, ...paragraphs(block.text)) }),
  line: lineChart,
  bar: barChart,
  heatmap: heatMap,
  table: (block) => ({
    figure: figureElement('table', block, null, tableElement(block.title, block.header, block.rows, block.align)),
  }),
  tokens: tokenText,
};

// A figure that fails to draw says so in its place, and the rest of the page stays.
function buildBlock(block) {
  try {
    return kFigures[block.type](block);
  } catch (error) {
    console.error(error);
    return { figure: element('p', { class: 'failed' }, `This figure could not be drawn: ${error.message}`) };
  }
}

// Small figures that follow one another share rows of two; one alone keeps the width.
function layOut(figures) {
  const out = [];
  for (const { figure } of figures) {
    const small = figure.classList.contains('small');
    const row = out[out.length - 1];
    if (small && row?.classList.contains('pair')) row.append(figure);
    else if (small) out.push(element('div', { class: 'pair' }, figure));
    else out.push(figure);
  }
  return out;
}

function buildSection(section, i) {
  const built = section.blocks.map(buildBlock);
  for (const { repaint } of built) if (repaint) repaints.push(repaint);
  return element('section', { id: `section-${i + 1}` }, section.title ? element('h2', {}, section.title) : null,
    section.text ? element('div', { class: 'prose' }, ...paragraphs(section.text)) : null, ...layOut(built));
}

function contents(sections) {
  const titled = sections.map(({ title }, i) => ({ title, i })).filter(({ title }) => title);
  if (titled.length < 3) return null;
  return element('nav', { 'aria-label': 'Contents' }, element('ol', {},
    ...titled.map(({ title, i }) => element('li', {}, element('a', { href: `#section-${i + 1}` }, title)))));
}

function buildPage() {
  const nav = contents(report.sections);
  const hasCharts = report.sections.some(({ blocks }) => blocks.some(({ type }) => ['line', 'bar', 'heatmap'].includes(type)));
  const hint = matchMedia('(pointer: coarse)').matches
    ? 'Tap a chart for its values, a name in a legend to hide its series.'
    : 'Drag over a line chart or heat map to zoom, double-click to return; click a name in a legend to hide its series.';
  const page = document.getElementById('page');
  page.classList.toggle('narrow', !nav);
  page.replaceChildren(
    element('header', {}, element('p', { class: 'brand' }, 'Kvasir'), element('h1', {}, report.title || 'Report'),
      report.subtitle ? element('p', { class: 'subtitle' }, report.subtitle) : null),
    element('div', { class: nav ? 'body with-nav' : 'body' }, nav, element('main', {}, ...report.sections.map(buildSection))),
    element('footer', {}, hasCharts ? element('p', { class: 'hint' }, hint) : null));
  document.body.append(tooltip);
}

// Colours follow the reader's scheme; paper is light and narrow, whatever the screen is.
function repaintAll() {
  repaints.forEach((repaint) => repaint());
  redrawCharts();
}
darkScheme.addEventListener('change', repaintAll);
addEventListener('beforeprint', () => {
  document.documentElement.classList.add('printing');
  repaints.forEach((repaint) => repaint());
  charts.forEach((chart) => chart.draw());
});
addEventListener('afterprint', () => {
  document.documentElement.classList.remove('printing');
  repaintAll();
});
addEventListener('scroll', scrollTooltip, { passive: true, capture: true });
addEventListener('pointerdown', hideTooltip);

buildPage();
charts.forEach((chart) => chart.watch());
