// Talks to the server: JSON, streams of events, errors with the server's own message.
import { recall, remember } from './storage.js';

const kKey = 'kvasir.key';
let key = recall(kKey) ?? '';

export function apiKey() { return key; }

export function setApiKey(value) {
  key = value.trim();
  remember(kKey, key);
}

export class ApiError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

async function request(path, { body, signal } = {}) {
  const headers = {};
  if (key) headers.Authorization = `Bearer ${key}`;
  if (body) headers['Content-Type'] = 'application/json';
  const answer = await fetch(path, {
    method: body ? 'POST' : 'GET', headers, signal, body: body && JSON.stringify(body), cache: 'no-store',
  });
  if (answer.ok) return answer;
  const said = await answer.json().catch(() => null);
  throw new ApiError(answer.status, said?.error?.message ?? `the server answered ${answer.status}`);
}

export async function getJson(path, options) { return (await request(path, options)).json(); }

// Yields the objects of a stream of server-sent events until it ends.
export async function* events(path, options) {
  const reader = (await request(path, options)).body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const blocks = (rest + value).split('\n\n');
      rest = blocks.pop();
      for (const block of blocks) {
        const data = block.split('\n').filter((line) => line.startsWith('data: ')).map((line) => line.slice(6)).join('\n');
        if (data === '[DONE]') return;
        if (data) yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
