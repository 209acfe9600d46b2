// The report of a grid in Chromium, at the width of a desktop and of a phone, light and dark.
//   node grid_test.mjs KVASIR MODEL [FOLDER]      FOLDER: for screenshots
// Exit status 77: skipped, since playwright-core or Chromium is missing (../web/browser.mjs).
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { pathToFileURL } from 'node:url';
import { findChromium, findPlaywright, launchOptions } from '../web/browser.mjs';
import { checkLabels, checkNoOverflow, checkSorting, desktop, eventually, open, phone } from './report_page.mjs';
import { checkContrast } from '../web/page.mjs';

const grid = {
  policies: ['full', 'streaming:cap={budget}', 'snapkv:budget={budget}'],
  budgets: [64, 128],
  codecs: ['f16', 'q8'],
  tasks: [{ perplexity: 'text.txt', window: 256, windows: 1 }, { task: 'needle', tokens: 256, count: 4 }],
};
const kSettings = 10;  // full, and two policies at two budgets, each on two codecs

async function checkTables(page) {
  for (const { policy, codec } of [{ policy: 'full', codec: 'f16' }, { policy: 'snapkv:budget=128', codec: 'q8' }]) {
    const rows = page.locator('figure.table tbody tr', { hasText: policy }).filter({ hasText: codec });
    assert.ok(await rows.count() >= 2, `${policy} on ${codec} has a row for each task`);
  }
  const most = await page.locator('figure.table table').evaluateAll((all) => Math.max(...all.map((one) => one.tBodies[0].rows.length)));
  assert.equal(most, kSettings, 'a table has a row for each setting');
}

async function checkCharts(page) {
  const drawn = await page.locator('.plot').evaluateAll((plots) => plots.map((plot) => [
    plot.querySelectorAll('.scatterlayer .point').length, plot.querySelectorAll('.barlayer .point').length]));
  const pareto = drawn.filter(([points]) => points === kSettings);
  assert.ok(pareto.length >= 4, `quality over bytes and over time for each task: points and bars are ${drawn.join(' ')}`);
  assert.ok(drawn.every(([points, bars]) => points + bars > 0), `something is drawn in each chart: ${drawn.join(' ')}`);
  await checkLabels(page);
}

const checks = (name, more) => async (page) => {
  await checkCharts(page);
  await checkTables(page);
  await more(page);
  await checkContrast(page);
  if (process.argv[4]) await page.screenshot({ path: path.join(process.argv[4], `grid-${name}.png`), fullPage: true });
};

async function checkDark(page) {
  const sum = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((all, channel) => all + Number(channel), 0);
  await eventually(async () => sum(await page.evaluate(() => getComputedStyle(document.body).backgroundColor)), (back) => back < 100, 'a dark page');
}

const [kvasir, model] = process.argv.slice(2);
if (!model) throw new Error('usage: node grid_test.mjs KVASIR MODEL [FOLDER]');
const { chromium } = findPlaywright();
const executablePath = findChromium();
const folder = mkdtempSync(path.join(tmpdir(), 'kvasir-grid-'));
let browser;
try {
  writeFileSync(path.join(folder, 'grid.json'), JSON.stringify(grid));
  writeFileSync(path.join(folder, 'text.txt'), 'The quick brown fox jumps over the lazy dog, and sleeps. '.repeat(100));
  execFileSync(kvasir, ['eval', 'matrix', path.join(folder, 'grid.json'), '-m', model, '--report', path.join(folder, 'grid.html')],
    { stdio: ['ignore', 'ignore', 'inherit'] });
  const url = pathToFileURL(path.join(folder, 'grid.html')).href;
  browser = await chromium.launch(launchOptions(executablePath));
  const wide = (page) => checkNoOverflow(page, 1280);
  await open(browser, url, desktop, checks('desktop', async (page) => { await wide(page); await checkSorting(page); }));
  await open(browser, url, { ...desktop, colorScheme: 'dark' }, checks('dark', async (page) => { await wide(page); await checkDark(page); }));
  await open(browser, url, phone, checks('phone', (page) => checkNoOverflow(page, 360)));
  await open(browser, url, { ...phone, colorScheme: 'dark' }, checks('phone-dark', checkDark));
  console.log('desktop and phone, light and dark: passed');
} finally {
  await browser?.close();
  rmSync(folder, { recursive: true });
}
