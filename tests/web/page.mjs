// What the checks of the Inspector do with its page.
import assert from 'node:assert/strict';
import path from 'node:path';

export const state = (page, request = '') => page.evaluate(async (id) => (await fetch(`v1/kv/state?request=${id}`)).json(), request);
export const shots = process.argv[4];
export const shot = (page, name) => shots && page.screenshot({ path: path.join(shots, `${name}.png`) });

export async function configure(page, policy, tokens, temperature = '0') {
  await page.locator('#settings').evaluate((settings) => { settings.open = true; });
  await page.fill('#policy', policy);
  await page.fill('#temperature', temperature);
  await page.fill('#max-tokens', String(tokens));
  await page.locator('#settings').evaluate((settings) => { settings.open = false; });
}

export async function say(page, text) {
  await page.focus('#prompt');
  await page.keyboard.type(text);
  await page.keyboard.press('Enter');
}

// Answers the next message with chunks that the test makes up: texts, and at the end what `last` has.
export const answerWith = (page, texts, last = {}) => page.route('**/v1/chat/completions', (route) => {
  const chunk = (more) => `data: ${JSON.stringify({ id: 'chatcmpl-x', choices: [], ...more })}\n\n`;
  const body = texts.map((content) => chunk({ choices: [{ index: 0, delta: { content } }] })).join('');
  route.fulfill({ contentType: 'text/event-stream', body: `${body}${chunk(last)}data: [DONE]\n\n` });
}, { times: 1 });

export const done = (page) => page.locator('#send:visible').waitFor();
export const answer = (page) => page.locator('article.assistant .body').last();

// Each pair of text and background has a contrast of at least 4.5 to 1.
export async function checkContrast(page) {
  const poor = await page.evaluate(() => {
    const canvas = new OffscreenCanvas(1, 1).getContext('2d', { willReadFrequently: true });
    const rgb = (colour) => {
      canvas.clearRect(0, 0, 1, 1);
      canvas.fillStyle = colour;
      canvas.fillRect(0, 0, 1, 1);
      return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => {
      const [r, g, b] = colour.map((c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4));
      return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const found = new Set();
    for (const element of document.querySelectorAll('body *')) {
      const text = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
      if (!text || element.disabled || !element.checkVisibility() || element.closest('.hidden, .skip, option')) continue;
      let behind = element;
      while (behind.parentElement && rgb(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
      const [a, b] = [rgb(getComputedStyle(element).color), rgb(getComputedStyle(behind).backgroundColor)].map((each) => light(each.slice(0, 3)));
      const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
      if (contrast < 4.5) found.add(`${element.tagName}.${element.className}: ${contrast.toFixed(2)}`);
    }
    return [...found];
  });
  assert.deepEqual(poor, []);
}
