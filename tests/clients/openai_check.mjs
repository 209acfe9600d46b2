// The `openai` package against `kvasir serve`.
//   node openai_check.mjs KVASIR MODEL
// Exit status 77: skipped, since the package is missing. It is looked for in tests/clients/node_modules
// (`npm ci --ignore-scripts` there) and NODE_PATH.
import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync } from 'node:fs';
import { createRequire } from 'node:module';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { startServer } from './serve.mjs';

const kHere = path.dirname(fileURLToPath(import.meta.url));
const kStory = { model: 'm', prompt: 'Once upon a time', max_tokens: 24, temperature: 0 };
const kChat = { model: 'm', messages: [{ role: 'user', content: 'Who are you?' }], max_tokens: 24, temperature: 0 };

function findOpenAI() {
  for (const folder of [kHere, ...(process.env.NODE_PATH ?? '').split(':').filter(Boolean)]) {
    try {
      return createRequire(path.join(folder, 'x.js'))('openai');
    } catch (error) {
      if (error.code !== 'MODULE_NOT_FOUND') throw error;
    }
  }
  console.log('skipped: the openai package is not installed (npm ci --ignore-scripts in tests/clients)');
  return process.exit(77);
}

const { OpenAI, APIUserAbortError, AuthenticationError, BadRequestError, NotFoundError, RateLimitError } = findOpenAI();

async function collect(stream) {
  const chunks = [];
  for await (const chunk of stream) chunks.push(chunk);
  return chunks;
}

const textOf = (chunks) => chunks.map((chunk) => chunk.choices[0]?.delta?.content ?? chunk.choices[0]?.text ?? '').join('');

async function checkModels(client) {
  const models = (await collect(await client.models.list())).map((model) => model.id);
  assert.deepEqual(models, ['m']);
}

async function checkChat(client) {
  const whole = await client.chat.completions.create(kChat);
  const { message, finish_reason: reason, logprobs } = whole.choices[0];
  assert.equal(message.role, 'assistant');
  assert.ok(message.content.length > 0 && ['stop', 'length'].includes(reason));
  assert.equal(logprobs, null);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

  const options = { ...kChat, stream: true, stream_options: { include_usage: true } };
  const chunks = await collect(await client.chat.completions.create(options));
  assert.equal(textOf(chunks), message.content, 'a stream has the text of the whole answer');
  assert.equal(chunks[0].choices[0].delta.role, 'assistant');
  assert.deepEqual(chunks.filter((chunk) => chunk.choices[0]?.finish_reason).map((c) => c.choices[0].finish_reason), [reason]);
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
  assert.ok(chunks.every((chunk) => chunk.id === chunks[0].id && chunk.object === 'chat.completion.chunk'));
  assert.ok(chunks.slice(0, -1).every((chunk) => chunk.choices.length === 1), 'only the chunk of the usage has no choice');

  // The package's own reader of streams, which puts the answer together again.
  const final = await client.chat.completions.stream(kChat).finalChatCompletion();
  assert.equal(final.choices[0].message.content, message.content);
}

async function checkCompletions(client) {
  const whole = await client.completions.create(kStory);
  const chunks = await collect(await client.completions.create({ ...kStory, stream: true }));
  assert.equal(textOf(chunks), whole.choices[0].text);
  assert.ok(chunks.every((chunk) => chunk.object === 'text_completion' && chunk.choices.length === 1));
  const echoed = await client.completions.create({ ...kStory, echo: true });
  assert.equal(echoed.choices[0].text, kStory.prompt + whole.choices[0].text);
  const word = whole.choices[0].text.trim().split(' ')[2];
  const cut = await client.completions.create({ ...kStory, stop: [word] });
  assert.equal(cut.choices[0].finish_reason, 'stop');
  assert.ok(whole.choices[0].text.startsWith(cut.choices[0].text) && !cut.choices[0].text.includes(word));
}

async function checkSamples(client) {
  const four = await client.completions.create({ ...kStory, n: 4, temperature: 1, seed: 11 });
  assert.deepEqual(four.choices.map((choice) => choice.index), [0, 1, 2, 3]);
  assert.ok(new Set(four.choices.map((choice) => choice.text)).size > 1, 'samples differ');
  for (const [i, choice] of four.choices.entries()) {
    const alone = await client.completions.create({ ...kStory, temperature: 1, seed: 11 + i });
    assert.equal(choice.text, alone.choices[0].text, 'sample i is the answer to seed + i');
  }
  const stream = await collect(await client.completions.create({ ...kStory, n: 4, temperature: 1, seed: 11, stream: true }));
  const texts = ['', '', '', ''];
  for (const chunk of stream) texts[chunk.choices[0].index] += chunk.choices[0].text;
  assert.deepEqual(texts, four.choices.map((choice) => choice.text));
  const greedy = await client.completions.create({ ...kStory, n: 4 });
  assert.equal(new Set(greedy.choices.map((choice) => choice.text)).size, 1, 'greedy samples are equal');
}

async function checkLogprobs(client) {
  const whole = await client.chat.completions.create({ ...kChat, logprobs: true, top_logprobs: 3 });
  const tokens = whole.choices[0].logprobs.content;
  const bytes = Buffer.concat(tokens.map((token) => Buffer.from(token.bytes)));
  assert.equal(bytes.toString(), whole.choices[0].message.content, 'the tokens are those of the text');
  for (const token of tokens) {
    assert.equal(token.top_logprobs.length, 3);
    assert.equal(token.logprob, token.top_logprobs[0].logprob, 'a greedy token is the likeliest');
    assert.ok(token.top_logprobs.reduce((sum, each) => sum + Math.exp(each.logprob), 0) <= 1 + 1e-6);
  }
  const final = await client.chat.completions.stream({ ...kChat, logprobs: true, top_logprobs: 3 }).finalChatCompletion();
  assert.deepEqual(final.choices[0].logprobs.content, tokens, 'a stream has the same');

  // Many of them stand in a stream too: more than a slow reader may leave unread.
  const long = { ...kChat, max_tokens: 500, logprobs: true, top_logprobs: 20, ignore_eos: true };
  const many = await client.chat.completions.stream(long).finalChatCompletion();
  assert.equal(many.choices[0].logprobs.content.length, 500);

  const text = await client.completions.create({ ...kStory, logprobs: 2 });
  const { token_logprobs: chosen, tokens: names, top_logprobs: top, text_offset: offsets } = text.choices[0].logprobs;
  assert.ok(chosen.length === names.length && top.length === names.length && offsets.length === names.length);
  assert.ok(top.every((each) => Object.keys(each).length === 2));
}

async function rejects(promise, type, check) {
  await assert.rejects(promise, (error) => {
    assert.ok(error instanceof type, `${error.constructor.name}: ${error.message}`);
    assert.ok(error.error.message.length > 0);
    check(error);
    return true;
  });
}

async function checkErrors(client) {
  for (const [fields, param] of [[{ temperature: -1 }, 'temperature'], [{ top_p: 0 }, 'top_p'], [{ n: 0 }, 'n'],
    [{ max_tokens: -5 }, 'max_tokens'], [{ messages: [] }, 'messages'], [{ tools: [{ type: 'function' }] }, 'tools'],
    [{ top_logprobs: 2 }, 'top_logprobs'], [{ stop: [''] }, 'stop'], [{ frequency_penalty: 99 }, 'frequency_penalty'],
    [{ messages: [{ role: 'user', content: [{ type: 'image_url', image_url: { url: 'data:,' } }] }] }, 'messages']]) {
    const check = (error) => assert.equal(error.param, param, JSON.stringify(fields));
    await rejects(client.chat.completions.create({ ...kChat, ...fields }), BadRequestError, check);
    await rejects(client.chat.completions.create({ ...kChat, ...fields, stream: true }), BadRequestError, check);
  }
  await rejects(client.chat.completions.create({ ...kChat, model: 'gpt-4' }), NotFoundError,
    (error) => assert.equal(error.code, 'model_not_found'));
  // No policy that drops nothing can hold this; `streaming` could.
  await rejects(client.completions.create({ ...kStory, prompt: 'word '.repeat(200000), kv: { policy: 'full' } }),
    BadRequestError, (error) => {
      assert.equal(error.code, 'context_length_exceeded');
      assert.match(error.message, /\d/, 'the message has the figures');
    });
  await rejects(client.embeddings.create({ model: 'm', input: 'x' }), BadRequestError,
    (error) => assert.match(error.message, /--pooling/));
}

// Processor time of the server so far, in seconds.
function cpuSeconds() {
  const fields = readFileSync(`/proc/${server.pid}/stat`, 'utf8').split(') ')[1].split(' ');
  return (Number(fields[11]) + Number(fields[12])) / 100;
}

// The engine runs nothing for clients that left.
async function checkCancellation(client) {
  const endless = { ...kStory, max_tokens: 1000000, ignore_eos: true, kv: { policy: 'streaming' } };
  for (const when of ['before the first text', 'in the middle']) {
    const runs = [...Array(12)].map(async () => {
      const abort = new AbortController();
      if (when === 'before the first text') setTimeout(() => abort.abort(), 30);
      try {
        let seen = 0;
        for await (const chunk of await client.completions.create({ ...endless, stream: true }, { signal: abort.signal }))
          if (chunk.choices[0].text !== '' && ++seen === 5) abort.abort();
      } catch (error) {
        assert.ok(error instanceof APIUserAbortError || error.name === 'AbortError', error);
      }
    });
    await Promise.all(runs);
    await client.completions.create(kStory);
    await new Promise((resolve) => { setTimeout(resolve, 2500); });
    const before = cpuSeconds();
    await new Promise((resolve) => { setTimeout(resolve, 1000); });
    assert.ok(cpuSeconds() - before < 0.3, `cancelled ${when}: the server still works`);
  }
  const abort = new AbortController();
  setTimeout(() => abort.abort(), 100);
  await assert.rejects(client.completions.create(endless, { signal: abort.signal }), APIUserAbortError);
  assert.equal((await fetch(client.baseURL.replace('/v1', '/health'))).status, 200);
}

async function checkConcurrentStreams(client) {
  const requests = [...Array(16)].map((_, i) => (
    { ...kStory, prompt: `${['The old man', 'A dragon', 'In the garden', 'Lily'][i % 4]} number ${i}`, max_tokens: 12 + 3 * i }));
  const alone = [];
  for (const request of requests) alone.push((await client.completions.create(request)).choices[0].text);
  const together = await Promise.all(requests.map(async (request) => (
    textOf(await collect(await client.completions.create({ ...request, stream: true }))))));
  assert.deepEqual(together, alone, 'each stream has the text that its request has alone');
}

// Keys: without one, with a wrong one, with one whose tenant may send two requests a minute.
async function checkKeys(kvasir, model) {
  const folder = mkdtempSync(path.join(tmpdir(), 'kvasir-keys-'));
  try {
    const file = ['--api-keys', path.join(folder, 'keys.toml')];
    const keys = (...args) => execFileSync(kvasir, ['keys', ...args, ...file], { encoding: 'utf8' });
    keys('tenant', 'ants', '--requests-per-minute', '2');
    const { key } = JSON.parse(keys('add', '--tenant', 'ants', '--json'));
    const server = await startServer(kvasir, model, ...file);
    const clientOf = (apiKey) => new OpenAI({ baseURL: `${server.base}/v1`, apiKey, maxRetries: 0 });
    for (const wrong of ['none', `${key}x`, key.slice(0, -1)])
      await assert.rejects(clientOf(wrong).completions.create(kStory), AuthenticationError);
    for (let i = 0; i < 2; ++i) assert.ok((await clientOf(key).completions.create(kStory)).choices[0].text.length > 0);
    await assert.rejects(clientOf(key).completions.create(kStory), (error) => {
      assert.ok(error instanceof RateLimitError, error);
      assert.ok(Number(error.headers.get('retry-after')) >= 1);
      return true;
    });
    assert.equal(await server.end(), 0);
  } finally {
    rmSync(folder, { recursive: true });
  }
}

const [, , kvasir, model] = process.argv;
const server = await startServer(kvasir, model);
const client = new OpenAI({ baseURL: `${server.base}/v1`, apiKey: 'none', maxRetries: 0, timeout: 60000 });
for (const check of [checkModels, checkChat, checkCompletions, checkSamples, checkLogprobs, checkErrors, checkCancellation,
  checkConcurrentStreams]) {
  const began = performance.now();
  await check(client);
  console.log(`${check.name}: ${((performance.now() - began) / 1000).toFixed(1)} s`);
}
assert.equal(await server.end(), 0);
await checkKeys(kvasir, model);
console.log('ended as it should');
