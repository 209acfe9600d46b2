// The sample report in Chromium, at the width of a desktop and of a phone, light, dark and on paper.
//   node browser_test.mjs REPORT_SAMPLE      where REPORT_SAMPLE is the program that writes it
// Exit status 77: skipped, since playwright-core or Chromium is missing (../web/browser.mjs).
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { findChromium, findPlaywright, launchOptions } from '../web/browser.mjs';
import { checkLabels, checkNoOverflow, checkSorting, desktop, eventually, hasCount, open, phone } from './report_page.mjs';

const kHostile = '</script></style></title><img src=x onerror="window.hostile=1"><!--<script>window.hostile=1</script>';
const kCharts = 14;  // in the sample

async function checkCharts(page) {
  const charts = await page.$$eval('.plot', (plots) => plots.map((plot) => {
    const { width, height } = plot.querySelector('svg.main-svg').getBoundingClientRect();
    return {
      width, height, label: plot.getAttribute('aria-label'), kind: plot.closest('figure').classList[1],
      lines: plot.querySelectorAll('.scatterlayer .trace').length, bars: plot.querySelectorAll('.barlayer .point').length,
      image: plot.querySelector('.heatmaplayer image')?.getAttribute('href')?.length ?? 0,
    };
  }));
  assert.equal(charts.length, kCharts);
  for (const chart of charts) {
    assert.ok(chart.width > 200 && chart.height > 80, `${chart.label}: ${chart.width} x ${chart.height}`);
    const drawn = { 'line-chart': chart.lines, 'bar-chart': chart.bars, 'heat-map': chart.image }[chart.kind];
    assert.ok(drawn > 0, `${chart.label}: nothing is drawn`);
    assert.ok(chart.label.length > 20, 'each chart says what it shows');
  }
  assert.equal(charts[0].lines, 5);
  assert.equal(await page.locator('figure p.note', { hasText: /^There is no (point|bar|cell) to draw/ }).count(), 4);
}

async function checkHostileStrings(page) {
  assert.equal(await page.evaluate('window.hostile'), undefined, 'a hostile string ran');
  assert.equal(await page.locator('img').count(), 0, 'a hostile string became an element');
  assert.equal(await page.locator('script').count(), 3);
  assert.equal(await page.locator('h2').last().textContent(), kHostile, 'hostile strings are shown as they are');
  assert.equal(await page.locator('.token-text .token').nth(600).textContent(), kHostile);
  assert.equal(await page.locator('.plot a').count(), 0, 'no link in a chart');
  const ticks = (await page.locator('.plot .xtick text, .plot .ytick text').allTextContents()).join('\n');
  assert.ok(ticks.includes('<b>bold</b>') && ticks.includes('<br>'), 'names on axes are text');
}

async function checkDesktop(page) {
  await checkCharts(page);
  await checkHostileStrings(page);
  await checkNoOverflow(page, 1280);
  const figure = page.locator('figure.line-chart').first();

  await figure.locator('.legend-entry').first().click();
  await hasCount(figure.locator('.scatterlayer .trace'), 4, 'the legend hides a series');
  await figure.locator('.legend-entry').first().click();
  await hasCount(figure.locator('.scatterlayer .trace'), 5, 'the legend shows it again');

  await figure.locator('.plot').scrollIntoViewIfNeeded();
  const box = await figure.locator('.plot').boundingBox();
  await page.mouse.move(box.x + 300, box.y + 120);
  await page.mouse.move(box.x + 304, box.y + 122);
  await page.locator('#tooltip', { hasText: /^Tokens read: [\d,]+.*window:size=1024\d+\.\d+/ }).waitFor();

  await page.mouse.down();
  await page.mouse.move(box.x + 500, box.y + 220, { steps: 4 });
  await page.mouse.up();
  await figure.getByText('Reset zoom').click();
  await figure.getByText('Reset zoom').waitFor({ state: 'hidden' });

  await figure.locator('summary').click();
  await hasCount(figure.locator('.figure-data tbody tr'), 200, 'rows of the table under the chart');
  const [download] = await Promise.all([page.waitForEvent('download'), figure.getByText('Save as CSV').click()]);
  assert.equal(download.suggestedFilename(), 'perplexity-over-position.csv');
  const lines = readFileSync(await download.path(), 'utf8').trim().split('\r\n');
  assert.equal(lines.length, 501);
  assert.match(lines[0], /^Tokens read,full,"streaming:sinks=4,window=1020",/);
  assert.match(lines[1], /^16,\d+\.\d+,/);
}

async function checkTokens(page) {
  const text = page.locator('figure.tokens').first();
  const colours = () => text.locator('.token-text .token').evaluateAll((all) => all.map((one) => one.style.backgroundColor).join());
  const first = await colours();
  assert.ok(new Set(first.split(/,(?=rgb|,)/)).size > 20, 'tokens have colours of their own');
  await text.locator('select').selectOption({ label: 'layer 4' });
  await eventually(colours, (shown) => shown !== first, 'another layer, other colours');
  assert.equal(await text.locator('input[type=range]').inputValue(), '4');
  await text.locator('.token-text').focus();
  await page.keyboard.press('ArrowRight');
  const tooltip = page.locator('#tooltip', { hasText: /“In”/ });
  await tooltip.waitFor();
  // Scrolled, the tooltip stays at its token; out of sight, it is hidden.
  const below = () => page.evaluate(() => document.querySelector('.token.current').getBoundingClientRect().top
    - document.querySelector('#tooltip').getBoundingClientRect().top);
  const scrolled = () => page.evaluate(() => window.scrollY);
  const [distance, before] = [await below(), await scrolled()];
  await page.evaluate(() => window.scrollBy(0, -60));
  await eventually(scrolled, (now) => now !== before, 'the page is scrolled');
  await eventually(below, (now) => Math.abs(now - distance) < 2, 'the tooltip is scrolled with its token');
  await page.evaluate(() => window.scrollTo(0, 0));
  await tooltip.waitFor({ state: 'hidden' });
  await page.keyboard.press('ArrowLeft');
  await tooltip.waitFor();
  await page.keyboard.press('Escape');
  await page.locator('#tooltip').waitFor({ state: 'hidden' });
}

async function checkPhone(page) {
  await checkCharts(page);
  await checkHostileStrings(page);
  await checkNoOverflow(page, 360);
  const box = page.locator('figure.table .table-box').first();
  const [inside, room] = await box.evaluate((one) => [one.scrollWidth, one.clientWidth]);
  assert.ok(inside > room + 100, 'a wide table scrolls in its box');
  const plot = page.locator('.plot').first();
  await plot.scrollIntoViewIfNeeded();
  await page.waitForTimeout(200);  // its own scrolling hides the tooltip
  const at = await plot.boundingBox();
  await page.touchscreen.tap(at.x + 150, at.y + 100);
  await page.locator('#tooltip', { hasText: /^Tokens read: / }).waitFor();
}

async function checkDark(page) {
  await checkCharts(page);
  const [back, ink] = await page.evaluate(() => [getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]
    .map((colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, channel) => sum + Number(channel), 0)));
  assert.ok(back < 100 && ink > 600, `light text on a dark page, not ${ink} on ${back}`);
  const line = () => page.locator('.scatterlayer .trace path.js-line').first().evaluate((one) => one.style.stroke);
  const dark = await line();
  const pdf = await page.pdf();
  assert.ok(pdf.length > 100000, 'the page prints');
  await hasCount(page.locator('html.printing'), 0, 'printing has ended');
  await eventually(line, (colour) => colour === dark, 'charts return to the colours of the screen');
  await page.emulateMedia({ colorScheme: 'light' });
  await eventually(line, (colour) => colour !== dark, 'charts follow the colour scheme');
}

// A chart is drawn anew once it is in sight and no longer fits.
async function checkWidths(page) {
  const plots = page.locator('.plot');
  for (let width = 1280; width >= 360; width -= 46) {
    await page.setViewportSize({ width, height: 800 });
    for (let i = 0; i < await plots.count(); i += 1) {
      await plots.nth(i).scrollIntoViewIfNeeded();
      await eventually(() => plots.nth(i).evaluate((plot) => plot.querySelector('svg.main-svg').getBoundingClientRect().right
        - plot.getBoundingClientRect().right), (beyond) => beyond < 2, `chart ${i} fits ${width} pixels`);
    }
    await checkLabels(page);
  }
}

const sample = process.argv[2];
if (!sample) throw new Error('usage: node browser_test.mjs REPORT_SAMPLE');
const { chromium } = findPlaywright();
const executablePath = findChromium();
const folder = mkdtempSync(path.join(tmpdir(), 'kvasir-report-'));
let browser;
try {
  const file = path.join(folder, 'sample.html');
  execFileSync(sample, [file], { stdio: 'inherit' });
  const url = pathToFileURL(file).href;
  browser = await chromium.launch(launchOptions(executablePath));
  await open(browser, url, desktop, checkDesktop);
  await open(browser, url, desktop, checkTokens);
  await open(browser, url, desktop, checkWidths);
  await open(browser, url, desktop, checkSorting);
  await open(browser, url, phone, checkPhone);
  await open(browser, url, { ...desktop, colorScheme: 'dark' }, checkDark);
  console.log('desktop, phone, dark and print: passed');
} finally {
  await browser?.close();
  rmSync(folder, { recursive: true });
}
