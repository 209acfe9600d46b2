// Checks of the conversation: Markdown, documents, settings, and what a reload keeps.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { answer, answerWith, checkContrast, configure, done, say, shot } from './page.mjs';

// What is wrong with a policy is said at its field, and nothing is sent with it.
export async function checkPolicy(page) {
  await page.click('#new');
  await page.locator('#settings').evaluate((settings) => { settings.open = true; });
  await page.fill('#policy', 'streaming:window=x');
  const fault = page.locator('#policy-fault');
  await fault.getByText('window=x').waitFor();  // soon after the last key
  assert.equal(await page.getAttribute('#policy', 'aria-invalid'), 'true');
  assert.ok((await page.getAttribute('#policy', 'aria-describedby')).split(' ').includes('policy-fault'));
  await page.fill('#policy', 'nonsense');
  await say(page, 'hello');  // the field loses the focus: no wait for the last key
  await fault.getByText('nonsense').waitFor();
  await page.waitForFunction(() => document.activeElement.id === 'policy');
  await checkContrast(page);
  await shot(page, 'policy-light');
  await page.locator('#settings').evaluate((settings) => { settings.open = false; });
  await say(page, '!');
  await page.waitForFunction(() => document.querySelector('#settings').open);
  assert.equal(await page.locator('article').count(), 0, 'nothing is added to the conversation');
  assert.equal(await page.inputValue('#prompt'), 'hello!', 'what was said can be sent again');
  await page.fill('#policy', 'full');
  await fault.getByText('nonsense').waitFor({ state: 'detached' });
  assert.equal(await page.getAttribute('#policy', 'aria-invalid'), 'false');
  page.expected(/status of 400/);
}

const kMarkdown = `# Top one

Some **bold two**, *slanted three*, \`code four\` &amp; <b>html five</b>, a [link six](https://example.org/six "six").
A [bad seven](javascript:window.hostile=1), a ![picture eight](https://example.org/eight.png).

- point nine
  1. below **ten**
     goes on eleven

> quoted twelve
> and thirteen

\`\`\`text
fence fourteen
  in deep fifteen
\`\`\`

| head sixteen | b |
|---|--:|
| x \\| y | cell seventeen |

- [x] task eighteen`;
const kNumbers = ['one', 'two', 'three', 'four', 'five', 'six', 'seven', 'eight', 'nine', 'ten', 'eleven', 'twelve', 'thirteen', 'fourteen', 'fifteen',
  'sixteen', 'seventeen', 'eighteen'];

// Markdown becomes elements, each text in the colour of its token; what is not safe stays text.
export async function checkMarkdown(page) {
  const library = await (await page.request.get(new URL('assets/marked.js', page.url()).href)).body();
  const sums = readFileSync(new URL('../../web/inspector/vendor/SHA256SUMS', import.meta.url), 'utf8');
  assert.equal(createHash('sha256').update(library).digest('hex'), sums.split(' ')[0], 'the library is the one of npm');
  await page.click('#new');
  await page.fill('#prompt', '');
  await answerWith(page, kMarkdown.match(/[^]{1,4}/g));
  await say(page, 'Write.');
  await done(page);
  const texts = (selector) => answer(page).locator(selector).allTextContents();
  assert.deepEqual(await texts('h4'), ['Top one']);
  assert.deepEqual(await texts('p strong'), ['bold two']);
  assert.deepEqual(await texts('p em'), ['slanted three']);
  assert.deepEqual(await texts('p code'), ['code four']);
  assert.deepEqual(await texts('ul ol > li'), ['below ten\ngoes on eleven']);
  assert.deepEqual(await texts('blockquote p'), ['quoted twelve\nand thirteen']);
  assert.deepEqual(await texts('pre code'), ['fence fourteen\n  in deep fifteen']);
  assert.deepEqual(await texts('thead th'), ['head sixteen', 'b']);
  assert.deepEqual(await texts('td'), ['x | y', 'cell seventeen']);
  assert.ok((await texts('p')).some((text) => text.includes('& <b>html five</b>') && text.includes('[bad seven](javascript:window.hostile=1)')));
  const links = await answer(page).locator('a').evaluateAll((all) => all.map(({ textContent, href, rel }) => [textContent, href, rel]));
  assert.deepEqual(links, [['link six', 'https://example.org/six', 'noopener noreferrer'],
    ['picture eight', 'https://example.org/eight.png', 'noopener noreferrer']]);
  assert.equal(await answer(page).locator('img, b, script').count(), 0);
  await shot(page, 'markdown-light');

  // One token after the other is kept: its text alone is marked, wherever it stands.
  const found = await page.evaluate(async ([source, words]) => {
    const { Markdown } = await import('./assets/markdown.js');
    const markdown = new Markdown(document.createElement('div'));
    markdown.show(source, true);
    return words.map((word) => {
      const at = source.search(new RegExp(`\\b${word}\\b`));
      const piece = (begin, end, kind) => ({ text: source.slice(begin, end), kind, share: 1 });
      markdown.colour([piece(0, at, 'evicted'), piece(at, at + word.length, 'kept'), piece(at + word.length, undefined, 'evicted')]);
      return [...markdown.element.querySelectorAll('mark.kept')].map((mark) => mark.textContent).join('+');
    });
  }, [kMarkdown, kNumbers]);
  assert.deepEqual(found, kNumbers);

  // Every colour is readable in every element.
  for (const theme of ['light', 'dark']) {
    await page.selectOption('#theme', theme);
    for (const kind of ['sink', 'kept', 'part', 'evicted']) {
      await answer(page).evaluate(async (body, [source, each]) => {
        const { Markdown } = await import('./assets/markdown.js');
        body.replaceChildren();
        const markdown = new Markdown(body);
        markdown.show(source, true);
        markdown.colour([{ text: source, kind: each, share: 0.5 }]);
      }, [kMarkdown, kind]);
      await checkContrast(page);
    }
    await shot(page, `markdown-${theme}`);
  }
  await page.selectOption('#theme', '');

  // Whatever a model writes ends as text, also what nests too deep for the reader of Markdown.
  const same = await page.evaluate(async () => {
    const { Markdown } = await import('./assets/markdown.js');
    return ['>'.repeat(20000), '1. '.repeat(7000), '[a]('.repeat(5000), '&#0;&#x110000;&nothing;', '```', '|a|\n|-', 'a\r\n\r\nb'].map((source) => {
      const markdown = new Markdown(document.createElement('div'));
      for (let end = 1; end < 20; ++end) markdown.show(source.slice(0, end));
      markdown.show(source, true);
      return markdown.element.textContent.length > 0 || source === '```';
    });
  });
  assert.ok(same.every(Boolean));
}

// An answer of 2,000 tokens a second is shown as it comes, in steps; the page does not fall behind.
export async function checkPace(page) {
  await page.click('#new');
  await page.evaluate(() => {
    const { fetch } = window;
    window.fetch = (path, options) => {
      if (!String(path).endsWith('chat/completions')) return fetch(path, options);
      window.fetch = fetch;
      const began = performance.now();
      let sent = 0;
      return Promise.resolve(new Response(new ReadableStream({
        async pull(stream) {
          await new Promise((resolve) => { setTimeout(resolve, 10); });
          let text = '';
          for (; sent < Math.min(6000, (performance.now() - began) * 2); ++sent) {
            const content = sent % 100 === 0 ? '\n\n- **item**' : ' word';
            text += `data: ${JSON.stringify({ id: 'x', choices: [{ index: 0, delta: { content } }] })}\n\n`;
          }
          stream.enqueue(new TextEncoder().encode(text));
          if (sent < 6000) return;
          window.sentAt = performance.now();
          stream.close();
        },
      })));
    };
    window.steps = 0;
    new MutationObserver(() => { ++window.steps; }).observe(document.querySelector('#messages'), { childList: true, subtree: true });
  });
  await say(page, 'Write much.');
  await page.waitForFunction(() => document.querySelector('article.assistant .body')?.textContent.length > 8000);
  assert.ok(await page.locator('#stop').isVisible(), 'it is shown while it comes');
  await page.waitForFunction(() => window.sentAt && !document.querySelector('article.live'));
  const { steps, late, items, length } = await page.evaluate(() => ({
    steps: window.steps, late: performance.now() - window.sentAt, items: document.querySelectorAll('article.assistant li strong').length,
    length: document.querySelector('article.assistant .body').textContent.length,
  }));
  assert.equal(items, 60);
  assert.ok(length > 29000, `${length} characters`);
  assert.ok(steps > 3 && steps < 60, `${steps} steps in 3 s`);
  assert.ok(late < 2000, `${late} ms late`);
}

// Why an answer ended, and why the cache gave no more, is said in words.
export async function checkWords(page) {
  const misses = ['too_short', 'unknown', 'evicted', 'expired', 'policy', 'codec', 'no_room', 'bypass'];
  const ends = ['length', 'context', 'kv_memory', 'cancelled', 'failed', 'end', 'stop', 'length'];
  for (let i = 0; i < misses.length; ++i) {
    await page.click('#new');
    const kv = { policy: 'full', codec: 'f16', kept: 9, seen: 9, bytes: 9000, cached: i, cache_miss: misses[i], finish_reason: ends[i] };
    await answerWith(page, ['Yes.'], { kv, usage: { prompt_tokens: 5, completion_tokens: 4 } });
    await say(page, 'Is it so?');
    await done(page);
    const note = await page.locator('article.assistant .note').textContent();
    assert.doesNotMatch(note, /_|unknown|not more|ended:/);
    assert.match(note, /prefix cache \((the|this) [a-z ,]+\)$/, note);
    assert.equal(/stopped|cancelled/.test(note), !['end', 'stop'].includes(ends[i]), note);
  }
}

// The conversation, the settings and what is not sent yet outlast a reload; New chat ends them.
export async function checkReload(page) {
  await page.click('#new');
  await configure(page, 'streaming:window=28', 60, '0.3');
  await page.locator('#system').evaluate((field) => { field.value = 'Be brief.'; });
  await page.setInputFiles('#files', { name: 'tale.txt', mimeType: 'text/plain', buffer: Buffer.from('Once upon a time.') });
  await page.locator('#documents li').waitFor();
  await say(page, 'And then?');
  await done(page);
  await page.locator('article.assistant mark').first().waitFor();
  await page.waitForFunction(() => document.querySelector('#watched').textContent.includes('ended'));
  await page.setInputFiles('#files', { name: 'more.txt', mimeType: 'text/plain', buffer: Buffer.from('More.') });
  await page.locator('#documents li').waitFor();
  await page.fill('#prompt', 'half a thought');
  await page.uncheck('#markdown');
  const all = () => page.evaluate(() => ({
    articles: [...document.querySelectorAll('article')].map((each) => each.textContent),
    marks: [...document.querySelectorAll('#messages mark')].map((mark) => mark.className + mark.textContent),
    fields: ['policy', 'system', 'temperature', 'max-tokens', 'prompt'].map((id) => document.getElementById(id).value),
    documents: [...document.querySelectorAll('#documents li')].map((each) => each.firstChild.data.split(' · ')[0]),
    markdown: document.querySelector('#markdown').checked,
  }));
  const before = await all();
  assert.equal(before.articles.length, 2);
  assert.deepEqual(before.fields, ['streaming:window=28', 'Be brief.', '0.3', '60', 'half a thought']);
  const read = async (form) => {
    await page.reload();
    await page.getByText('live', { exact: true }).waitFor();
    if (form) await page.locator('#messages mark').first().waitFor();
  };
  await read(true);
  assert.deepEqual(await all(), before);
  assert.equal(await page.locator('#again').isEnabled(), true);
  await page.check('#markdown');

  // Of much, the newest is kept.
  await page.evaluate(() => {
    const chat = JSON.parse(sessionStorage.getItem('kvasir.chat'));
    chat.said[0].text = 'old '.repeat(500000);
    chat.said.push({ ...chat.said[0], text: 'new '.repeat(200000), documents: [] }, { ...chat.said[1], text: 'The newest.' });
    window.addEventListener('pagehide', () => sessionStorage.setItem('kvasir.chat', JSON.stringify(chat)));
  });
  await read(false);
  assert.equal(await page.locator('article').count(), 4);
  await read(false);
  assert.deepEqual(await page.locator('article h3').allTextContents(), ['You', 'mini']);
  assert.match(await answer(page).textContent(), /The newest/);
  await page.getByText('Earlier messages').waitFor();

  await page.click('#new');
  await page.fill('#prompt', '');
  await page.locator('#system').evaluate((field) => { field.value = ''; });
  assert.equal(await page.evaluate(() => sessionStorage.getItem('kvasir.chat')), null);
  await read(false);
  assert.equal(await page.locator('article').count(), 0);
  assert.equal(await page.inputValue('#policy'), 'streaming:window=28');
}

// Without storage, the page chats all the same.
export async function checkNoStorage(page) {
  await page.addInitScript(() => {
    for (const area of ['sessionStorage', 'localStorage'])
      Object.defineProperty(window, area, { get() { throw new DOMException('blocked', 'SecurityError'); } });
  });
  await page.reload();
  await page.getByText('live', { exact: true }).waitFor();
  await configure(page, '', 5);
  await say(page, 'hello');
  await done(page);
  assert.equal(await page.locator('article').count(), 2);
}

// A text file goes ahead of the question, folded; what is no text is refused in a line.
export async function checkDocuments(page) {
  await page.click('#new');
  await configure(page, 'full', 10);
  const chooser = page.waitForEvent('filechooser');
  const drop = (files) => page.evaluate((list) => {
    const dataTransfer = new DataTransfer();
    for (const { name, bytes, length } of list) dataTransfer.items.add(new File([length ? new Uint8Array(length).fill(97) : new Uint8Array(bytes)], name));
    for (const type of ['dragover', 'drop']) document.querySelector('#messages').dispatchEvent(new DragEvent(type, { dataTransfer, bubbles: true, cancelable: true }));
  }, files);
  const text = `The secret is ${'very '.repeat(400)}old.`;
  await drop([{ name: 'secret.txt', bytes: [...Buffer.from(text)] }]);
  const chip = page.locator('#documents li').first();
  await chip.getByText(/^secret\.txt · 1\.97 KiB · \d+ tokens/).waitFor();

  const error = page.locator('#document-error');
  for (const [bad, why] of [[{ name: 'a.bin', bytes: [65, 0, 66] }, /^a\.bin is not a text file\.$/],
    [{ name: 'b.txt', bytes: [65, 0xff, 66] }, /^b\.txt is not a text file in UTF-8\.$/],
    [{ name: 'c.txt', length: 2 ** 21 + 1 }, /^c\.txt is too large: 2\.00 MiB, .*at most 2\.00 MiB/], [{ name: 'd.txt', bytes: [] }, /^d\.txt has no text\.$/]]) {
    await drop([bad]);
    await error.getByText(bad.name).waitFor();
    assert.match(await error.textContent(), why);
    assert.equal(await page.locator('#documents li').count(), 1);
  }
  await checkContrast(page);

  // By keyboard: choose a file, and take it off again.
  await page.focus('#add');
  await page.keyboard.press('Enter');
  await (await chooser).setFiles({ name: 'other.md', mimeType: 'text/markdown', buffer: Buffer.from('Other.') });
  await page.locator('#documents li').nth(1).waitFor();
  assert.equal(await error.textContent(), '');
  await shot(page, 'document-light');
  await page.getByRole('button', { name: 'Remove other.md' }).focus();
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('#documents li').count(), 1);

  const request = page.waitForRequest('**/v1/chat/completions');
  await say(page, 'What is the secret?');
  const { messages } = (await request).postDataJSON();
  assert.ok(messages.at(-1).content.indexOf(text) > 0 && messages.at(-1).content.endsWith('\n\nWhat is the secret?'));
  await done(page);
  assert.ok(await page.locator('#documents').isHidden());
  const article = page.locator('article.user');
  assert.equal(await article.locator('> .body').textContent(), 'What is the secret?');
  assert.match(await article.locator('summary').textContent(), /^secret\.txt · 1\.97 KiB/);
  assert.equal(await article.locator('details .body').textContent(), '', 'folded text is not in the page');
  await article.locator('> .body mark.kept').waitFor();
  await article.locator('summary').click();
  await article.locator('details mark').first().waitFor();
  assert.equal(await article.locator('details .body').textContent(), text);
  await shot(page, 'document-open-light');
}
