// The Inspector in Chromium, on the real server with a real model.
//   node inspector_check.mjs KVASIR MODEL [FOLDER]      FOLDER: for screenshots
// KVASIR_INSPECTOR_URL: a server that runs already, with a proxy that has the files of web/inspector in front, perhaps.
// Exit status 77: skipped, since playwright-core or Chromium is missing (README.md of this folder).
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { mkdirSync } from 'node:fs';
import { checkDocuments, checkMarkdown, checkNoStorage, checkPace, checkPolicy, checkReload, checkWords } from './conversation_checks.mjs';
import { answer, answerWith, checkContrast, configure, done, say, shot, state } from './page.mjs';
import { findChromium, findPlaywright, launchOptions } from './browser.mjs';

const [kvasir, model, shots] = process.argv.slice(2);
if (!model) throw new Error('usage: node inspector_check.mjs KVASIR MODEL [FOLDER]');
const kHostile = '<img src=x onerror="window.hostile=1"><script>window.hostile=1</script>';

async function startServer() {
  if (process.env.KVASIR_INSPECTOR_URL) return { url: process.env.KVASIR_INSPECTOR_URL };
  const server = spawn(kvasir, ['serve', '--threads', '1', '-m', model, '--port', '0', '--name', 'mini', '--kv-memory', '16MiB', '--kv-types', 'q8', '--drain', '1']);
  let said = '';
  const port = await new Promise((resolve, reject) => {
    server.stderr.on('data', (data) => {
      said += data;
      const found = /http:\/\/127\.0\.0\.1:(\d+)/.exec(said);
      if (found) resolve(found[1]);
    });
    server.on('exit', () => reject(new Error(`the server ended: ${said}`)));
  });
  return { server, url: `http://127.0.0.1:${port}/` };
}

// Opens the page, runs a check, and holds the page to loading nothing else and complaining of nothing.
async function withPage(browser, url, options, check) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  page.setDefaultTimeout(60000);
  const complaints = [];
  page.expected = (pattern) => complaints.splice(0, complaints.length, ...complaints.filter((each) => !pattern.test(each)));
  page.on('console', (message) => {
    const { url: about } = message.location();
    if (about.endsWith('/v1/kv/plan') && /404/.test(message.text())) return;  // a server without plans
    if (['error', 'warning'].includes(message.type())) complaints.push(`${message.type()}: ${message.text()} ${about}`);
  });
  page.on('pageerror', (error) => complaints.push(error.stack));
  page.on('request', (request) => {
    if (!request.url().startsWith(url)) complaints.push(`loads ${request.url()}`);
  });
  const answer = await page.goto(url);
  assert.match(answer.headers()['content-security-policy'], /default-src 'self'/);
  await page.getByText('live', { exact: true }).waitFor();
  await check(page);
  assert.deepEqual(complaints, [], 'the page is silent and loads nothing from elsewhere');
  await context.close();
}

// By keyboard alone: a message, an answer, and its tokens in the colours of a small window.
async function checkChat(page) {
  await page.keyboard.press('Tab');
  assert.equal(await page.evaluate(() => document.activeElement.className), 'skip', 'the first stop of Tab');
  await page.keyboard.press('Enter');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt');
  await configure(page, 'streaming:window=28', 150);
  await say(page, 'Tell me about the sea and a storm.');
  await done(page);
  await page.locator('#messages mark.evicted').first().waitFor();
  await page.locator('article.assistant mark.kept').first().waitFor({ state: 'attached' });  // a token of white space alone is not visible
  await page.getByText('ended', { exact: false }).first().waitFor();
  await page.waitForFunction(() => document.querySelector('#watched').textContent.includes('ended'));
  await shot(page, 'chat-light');

  // What is coloured is what the server says.
  const request = (await page.textContent('#watched')).split(',')[0];
  const { selected } = await state(page, request);
  assert.equal(selected.kept, 32);
  const evicted = selected.seen - selected.kept;
  assert.ok(evicted > 50, `${evicted} evicted`);
  const figures = await page.$$eval('#figures > div', (divs) => Object.fromEntries(divs.map((each) => [...each.children].map((child) => child.textContent))));
  assert.equal(figures.Kept.split(' ')[0], '32');
  assert.equal(figures.Evicted, String(evicted));
  const marked = () => answer(page).evaluate((body) => [...body.querySelectorAll('mark.kept')].map((mark) => mark.textContent).join(''));
  const bare = (text) => text.replace(/\s/g, '');
  const asMarkdown = await marked();
  await page.uncheck('#markdown');
  const kept = await marked();
  const tail = selected.texts.slice(-28).filter((_, i) => !selected.controls.includes(selected.texts.length - 28 + i)).join('');
  assert.equal(kept, tail, 'the window is the newest 28 tokens');
  assert.ok((await answer(page).textContent()).endsWith(kept));
  assert.equal(bare(asMarkdown), bare(tail), 'Markdown has the same colours');
  await page.check('#markdown');
  assert.equal(await marked(), asMarkdown);

  await page.click('#text summary');
  await page.locator('#text-tokens mark.sink').first().waitFor();
  assert.equal(await page.locator('#text-tokens').textContent(), selected.texts.join(''));

  // A second turn, and the same once more.
  await say(page, 'And then?');
  await done(page);
  assert.equal(await page.locator('article').count(), 4);
  await page.focus('#again');
  await page.keyboard.press('Enter');
  await done(page);
  assert.equal(await page.locator('article').count(), 4);
  assert.ok((await answer(page).textContent()).length > 0);
}

// The server's codec is the first choice; the other one is that of the next request alone.
async function checkCodec(page) {
  await page.waitForFunction(() => document.querySelectorAll('#codec option').length > 1);  // the server has said which
  assert.deepEqual(await page.$$eval('#codec option', (all) => all.map(({ value }) => value)), ['', 'q8']);
  const watched = async () => (await page.textContent('#watched')).split(',')[0];
  // Asks by `action`, and returns the codec of that request once the page shows that it has ended.
  const codecOf = async (action) => {
    const before = await watched();
    await action();
    await done(page);
    await page.waitForFunction((earlier) => {
      const shown = document.querySelector('#watched').textContent;
      return shown.includes('ended') && shown.split(',')[0] !== earlier;
    }, before);
    return (await state(page, await watched())).selected.codec;
  };
  await configure(page, 'full', 20);
  await page.locator('#settings').evaluate((settings) => { settings.open = true; });
  await page.selectOption('#codec', 'q8');
  assert.equal(await codecOf(() => say(page, 'And in eight bits?')), 'q8');
  assert.match(await page.locator('article.assistant').last().textContent(), / q8 /);
  await page.selectOption('#codec', '');
  assert.equal(await codecOf(() => page.click('#again')), 'f16');
}

async function checkMemory(page) {
  const now = (await state(page)).memory;  // no request runs: it stays so
  await page.waitForFunction(({ used, budget }) => {
    const shown = document.querySelector('#memory-bar').dataset;
    return Number(shown.used) === used && Number(shown.budget) === budget;
  }, now);
  const parts = await page.$$eval('#memory-parts dd', (all) => all.map((each) => [each.dataset.part, Number(each.dataset.bytes)]));
  assert.equal(parts.reduce((sum, [, bytes]) => sum + bytes, 0), now.budget, 'the parts are all of it');
  assert.equal(Object.fromEntries(parts).free, now.budget - now.used);
}

// Esc stops an answer that would not end, and that comes in parts; the server stops too. Meanwhile the cache is live.
async function checkStop(page) {
  await page.click('#new');
  await configure(page, 'h2o:budget=64', 6000, '1');
  await page.route('**/v1/chat/completions', (route) => {
    route.continue({ postData: JSON.stringify({ ...route.request().postDataJSON(), ignore_eos: true, max_tokens: 1e9, seed: 1 }) });
  }, { times: 1 });
  await page.evaluate(() => {
    window.lengths = new Set();
    new MutationObserver(() => {
      const body = [...document.querySelectorAll('article.assistant .body')].at(-1);
      if (body) window.lengths.add(body.textContent.length);
    }).observe(document.querySelector('#messages'), { childList: true, subtree: true, characterData: true });
  });
  await say(page, 'Tell me a story of a long journey.');
  await page.waitForFunction(() => window.lengths.size > 5);
  await page.locator('#sequences button[aria-pressed=true]').waitFor();
  await page.locator('article.assistant mark.part').first().waitFor();
  await shot(page, 'heads-light');
  await page.keyboard.press('Escape');
  await done(page);
  assert.match(await page.locator('article.assistant .note').last().textContent(), /stopped/);
  await page.waitForFunction(() => document.querySelector('#sequences').textContent.includes('No request'));
  assert.deepEqual((await state(page)).sequences, []);
  assert.equal(await page.evaluate(() => document.activeElement.id), 'prompt', 'the focus stays');
}

// A server without plans says what is wrong when the request comes.
async function checkErrors(page) {
  await page.route('**/v1/kv/plan', (route) => route.fulfill({ status: 404, json: { error: { message: 'not here' } } }));
  await page.reload();
  await page.getByText('live', { exact: true }).waitFor();
  await page.click('#new');
  await page.fill('#prompt', '');
  await configure(page, 'nonsense', 20);
  await page.setInputFiles('#files', { name: 'a.txt', mimeType: 'text/plain', buffer: Buffer.from('once') });
  await page.locator('#documents li').waitFor();
  await say(page, 'hello');
  const alert = page.locator('#messages').getByRole('alert');
  await alert.waitFor();
  assert.match(await alert.textContent(), /nonsense/);
  assert.equal(await page.inputValue('#prompt'), 'hello', 'what was said can be sent again');
  assert.match(await page.locator('#documents li').textContent(), /^a\.txt/);
  page.expected(/status of 400/);
  await configure(page, '', 20);
  await page.unroute('**/v1/kv/plan');
  await page.reload();
  await page.getByText('live', { exact: true }).waitFor();
}

// Text is text: of the user, of the model (an answer that the test makes up), and of the cache.
async function checkHostile(page) {
  await page.click('#new');
  await page.fill('#prompt', '');
  await configure(page, '', 30);
  await answerWith(page, [kHostile]);
  await say(page, kHostile);
  await done(page);
  assert.equal(await answer(page).textContent(), kHostile);
  await page.uncheck('#markdown');
  assert.equal(await answer(page).textContent(), kHostile);
  await page.check('#markdown');
  await say(page, kHostile);
  await done(page);
  await page.locator('article.user mark').first().waitFor();
  for (const body of await page.locator('article.user .body').all()) assert.equal(await body.textContent(), kHostile);
  assert.equal(await page.locator('#messages img, #messages script, #cache img, #cache script').count(), 0);
  assert.equal(await page.evaluate(() => window.hostile), undefined);
}

// Numbers and names stay within their tiles, however long.
async function checkTiles(page) {
  const selected = {
    request: '', sample: 0, state: 'running', policy: 'snapkv:budget=512,window=16,kernel=15,pool=max+lethe:threshold=0.25', codec: 'f16', seen: 123456789, kept: 98765432,
    cached: 87654321, pages: 3456789012, bytes: 1022.9 * 2 ** 40, prompt_tokens: 5, sinks: 4, levels: 1, bucket: 2 ** 20, kept_runs: [118, 1], page_runs: [[2, 32]],
    page_tokens: 32, tables: 1, tables_shown: 1, from: 0, texts: [], controls: [],
  };
  const row = { request: 'chatcmpl-0123456789abcdef0123456789abcdef', sample: 0, state: 'preempted', policy: selected.policy, seen: 1, kept: 1, pages: 1, bytes: 1 };
  const made = { memory: { used: selected.bytes, budget: 2 * selected.bytes, prefix: 2 ** 40 }, sequences: [row], sequences_left_out: 0, selected, load: null, tenant: null };
  await page.route('**/v1/kv/live*', (route) => route.fulfill({ contentType: 'text/event-stream', body: `data: ${JSON.stringify(made)}\n\n` }));
  await page.reload();
  await page.getByText('live', { exact: true }).waitFor();
  for (const width of [1280, 390]) {
    await page.setViewportSize({ width, height: 860 });
    if (width < 800) await page.getByRole('button', { name: 'Cache' }).click();
    await page.locator('#figures').getByText('123,456,789').waitFor();
    const outside = await page.evaluate(() => [...document.querySelectorAll('#figures > div, #memory-parts > div')].flatMap((tile) => {
      const box = tile.getBoundingClientRect();
      const range = document.createRange();
      range.selectNodeContents(tile);
      const out = [...range.getClientRects()].some((part) => part.left < box.left - 0.5 || part.right > box.right + 0.5 || part.bottom > box.bottom + 0.5);
      return out || tile.scrollWidth > tile.clientWidth || box.right > innerWidth ? [tile.textContent] : [];
    }));
    assert.deepEqual(outside, [], `tiles at ${width} pixels`);
    assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= innerWidth));
    await shot(page, `tiles-${width}`);
  }
  await page.unroute('**/v1/kv/live*');
}

async function checkThemes(page) {
  const light = await page.screenshot();
  await page.selectOption('#theme', 'dark');
  const dark = await page.screenshot();
  assert.ok(!light.equals(dark), 'the switch changes the page');
  assert.equal(await page.evaluate(() => getComputedStyle(document.documentElement).colorScheme), 'dark');
  await page.reload();
  assert.equal(await page.inputValue('#theme'), 'dark', 'the choice is kept');
  await page.selectOption('#theme', '');
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const before = await background();
  await page.emulateMedia({ colorScheme: 'dark' });
  assert.notEqual(await background(), before, "the system's choice counts");
}

async function checkPhone(page) {
  const fits = async () => assert.ok(await page.evaluate(() => document.documentElement.scrollWidth <= 375
    && [...document.querySelectorAll('main *')].every((each) => each.closest('#sequences') || each.getBoundingClientRect().right <= 376.5)), 'nothing is wider than the phone');
  await configure(page, 'snapkv:budget=14,window=4', 120);
  await say(page, 'Describe the garden behind the old house, with all its trees and flowers.');
  await done(page);
  await page.locator('article.assistant mark').first().waitFor();
  await fits();
  await shot(page, 'phone-chat');
  await page.getByRole('button', { name: 'Cache' }).click();
  assert.ok(await page.locator('#token-map').isVisible() && !(await page.locator('#prompt').isVisible()));
  await fits();
  await checkContrast(page);
  await shot(page, 'phone-cache');
  assert.ok((await page.locator('#token-map').evaluate((canvas) => canvas.toDataURL())).length > 1000, 'something is drawn');
}

const { chromium } = findPlaywright();
const executablePath = findChromium();
if (shots) mkdirSync(shots, { recursive: true });
const { server, url } = await startServer();
let browser;
try {
  browser = await chromium.launch(launchOptions(executablePath));
  const desktop = { viewport: { width: 1360, height: 860 }, colorScheme: 'light' };
  const phone = { viewport: { width: 375, height: 740 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2, colorScheme: 'light' };
  await withPage(browser, url, desktop, async (page) => {
    await checkChat(page);
    await checkCodec(page);
    await checkMemory(page);
    await checkContrast(page);
    await checkStop(page);
    await checkPolicy(page);
    await checkErrors(page);
    await checkContrast(page);
    await checkHostile(page);
    await checkMarkdown(page);
    await checkPace(page);
    await checkWords(page);
  });
  await withPage(browser, url, desktop, async (page) => {
    await checkReload(page);
    await checkDocuments(page);
    await checkNoStorage(page);
  });
  await withPage(browser, url, desktop, checkTiles);
  await withPage(browser, url, { ...desktop, colorScheme: 'dark' }, async (page) => {
    await configure(page, 'streaming:window=60', 200);
    await say(page, 'What did the king say to the old man?');
    await done(page);
    await page.locator('article.assistant mark.kept').first().waitFor({ state: 'attached' });  // a token of white space alone is not visible
    await page.waitForFunction(() => document.querySelector('#watched').textContent.includes('ended'));
    await checkContrast(page);
    await shot(page, 'chat-dark');
  });
  await withPage(browser, url, desktop, checkThemes);
  await withPage(browser, url, phone, checkPhone);
  console.log('chat, cache, errors, Markdown, documents, reload, hostile text, themes, contrast, phone: passed');
} finally {
  await browser?.close();
  server?.removeAllListeners('exit');
  server?.kill('SIGTERM');
}
