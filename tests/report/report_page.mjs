// What the browser tests do with a report's page.
import assert from 'node:assert/strict';

export const desktop = { viewport: { width: 1280, height: 800 } };
export const phone = { viewport: { width: 360, height: 740 }, isMobile: true, hasTouch: true };

// Waits until `read` returns what `holds` accepts, since a page answers a click or a media query by events of its own;
// fails with `message` after ten seconds.
export async function eventually(read, holds, message) {
  const end = Date.now() + 10000;
  let value = await read();
  while (!holds(value) && Date.now() < end) {
    await new Promise((resolve) => { setTimeout(resolve, 20); });
    value = await read();
  }
  assert.ok(holds(value), `${message}; last: ${String(value).slice(0, 200)}`);
}

export function hasCount(locator, count, message) {
  return eventually(() => locator.count(), (found) => found === count, `${message}: ${count} wanted`);
}

// Opens the page and visits all of it, so that every chart is drawn.
export async function open(browser, url, options, check) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const complaints = [];
  page.on('console', (message) => complaints.push(`${message.type()}: ${message.text()}`));
  page.on('pageerror', (error) => complaints.push(error.stack));
  page.on('request', (request) => {
    if (request.url() !== url && !/^(data|blob):/.test(request.url())) complaints.push(`loads ${request.url()}`);
  });
  await page.goto(url);
  const count = await page.locator('.plot').count();
  for (let i = 0; i < count; ++i) {
    await page.locator('.plot').nth(i).scrollIntoViewIfNeeded();
    await page.locator('.plot').nth(i).locator('svg').first().waitFor();
  }
  await check(page);
  assert.deepEqual(complaints, [], 'the page is silent and loads nothing');
  await context.close();
}

export async function checkNoOverflow(page, width) {
  const wide = await page.evaluate((limit) => [document.documentElement.scrollWidth, ...[...document.querySelectorAll('main *')]
    .filter((one) => !one.closest('.table-box table, .plot, .token-text, .spoken') && one.getBoundingClientRect().right > limit + 0.5)
    .map((one) => one.outerHTML.slice(0, 80))], width);
  assert.deepEqual(wide, [width], 'nothing is wider than the window');
}

// Labels along the horizontal axis of a chart do not lie on each other.
export async function checkLabels(page) {
  const charts = await page.locator('.plot').evaluateAll((plots) => plots.map((plot) => [...plot.querySelectorAll('.xtick text')]
    .map((label) => ({ text: label.textContent, box: label.getBoundingClientRect() }))
    .map(({ text, box }) => ({ text, left: box.left, right: box.right })).sort((a, b) => a.left - b.left)));
  for (const labels of charts) {
    assert.ok(labels.every(({ left }, i) => i === 0 || left >= labels[i - 1].right),
      `labels overlap: ${labels.map(({ text, left, right }) => `${text} at ${left} to ${right}`).join(', ')}`);
  }
}

// A column's header orders the rows by it: numbers by value, once more the other way round.
export async function checkSorting(page) {
  const table = page.locator('figure.table table').filter({ has: page.locator('tbody tr:nth-child(3)') }).first();
  const headers = table.locator('thead th');
  const cells = async (column) => table.locator(`tbody tr > :nth-child(${column + 1})`).allTextContents();
  for (let column = 0; column < await headers.count(); column += 1) {
    const before = await cells(column);
    await headers.nth(column).locator('button').click();
    assert.equal(await headers.nth(column).getAttribute('aria-sort'), 'ascending');
    const up = await cells(column);
    assert.deepEqual([...up].sort(), [...before].sort(), 'sorting moves rows and changes none');
    const numbers = up.map(Number);
    if (numbers.every(Number.isFinite)) assert.deepEqual(numbers, [...numbers].sort((a, b) => a - b));
    await headers.nth(column).locator('button').click();
    assert.equal(await headers.nth(column).getAttribute('aria-sort'), 'descending');
    assert.equal(await table.locator('[aria-sort]').count(), 1);
  }
}
