// The AI SDK of Vercel (`ai` with `@ai-sdk/openai-compatible`) against `kvasir serve`.
//   node ai_sdk_check.mjs KVASIR
// Exit status 77: skipped, since a package or the model is missing (`npm ci --ignore-scripts` here).
import assert from 'node:assert/strict';
import { existsSync } from 'node:fs';
import { homedir } from 'node:os';
import path from 'node:path';
import { startServer } from '../serve.mjs';

const kWords = ['zorp', 'quux', 'blarg'];  // what the model does not say by itself: it is due to a schema
const kQuestion = 'Who are you?';
const kLimit = 16;  // tokens

// The rule of tests/support/real_model.py.
function findModel() {
  const cache = process.env.KVASIR_CACHE ?? path.join(process.env.XDG_CACHE_HOME ?? path.join(homedir(), '.cache'), 'kvasir');
  const file = process.env.KVASIR_REAL_MODEL ?? path.join(cache, 'models', 'SmolLM2-135M-Instruct.Q4_1.gguf');
  if (existsSync(file)) return file;
  console.log(`needs ${file} (scripts/run downloads it; KVASIR_REAL_MODEL names another place)`);
  return process.exit(process.env.KVASIR_REQUIRE_REAL_MODEL === '1' ? 1 : 77);
}

async function importOrSkip(name) {
  try {
    return await import(name);
  } catch (error) {
    if (error.code !== 'ERR_MODULE_NOT_FOUND') throw error;
    console.log(`skipped: the package ${name} is not installed (npm ci --ignore-scripts in tests/clients/ai_sdk)`);
    return process.exit(77);
  }
}

const { generateObject, generateText, stepCountIs, streamObject, streamText, tool } = await importOrSkip('ai');
const { createOpenAICompatible } = await importOrSkip('@ai-sdk/openai-compatible');
const { z } = await importOrSkip('zod');

const kAnimal = z.object({ name: z.enum(kWords), legs: z.number().int().min(2).max(8) });
const legsOf = (animal) => 3 + kWords.indexOf(animal);
const countLegs = tool({
  description: 'Counts the legs of an animal.',
  inputSchema: z.object({ animal: z.enum(kWords) }),
  execute: async ({ animal }) => ({ legs: legsOf(animal) }),
});

async function checkText(model, answer) {
  const whole = await generateText({ ...model, prompt: kQuestion, maxOutputTokens: kLimit });
  assert.equal(whole.text, answer);
  assert.equal(whole.finishReason, 'length');
  assert.equal(whole.usage.outputTokens, kLimit);

  const stream = streamText({ ...model, prompt: kQuestion, maxOutputTokens: kLimit });
  const parts = [];
  for await (const part of stream.textStream) parts.push(part);
  assert.equal(parts.join(''), answer);
  assert.ok(parts.length > 3, 'it comes in parts');
  assert.equal((await stream.usage).outputTokens, kLimit);
}

async function checkTools(model) {
  const asked = { ...model, tools: { countLegs }, maxOutputTokens: 60, prompt: 'How many legs does the animal have?' };
  for (const toolChoice of ['required', { type: 'tool', toolName: 'countLegs' }]) {
    const { toolCalls, toolResults, finishReason } = await generateText({ ...asked, toolChoice,
      providerOptions: { kvasir: { parallel_tool_calls: false } } });
    assert.equal(finishReason, 'tool-calls');
    assert.equal(toolCalls.length, 1);
    assert.equal(toolResults[0].output.legs, legsOf(toolCalls[0].input.animal));
  }
  // The result goes back in a second step, which may not call.
  const steps = await generateText({ ...asked, toolChoice: { type: 'tool', toolName: 'countLegs' }, stopWhen: stepCountIs(2),
    prepareStep: ({ stepNumber }) => (stepNumber === 0 ? {} : { toolChoice: 'none' }) });
  assert.equal(steps.steps.length, 2);
  assert.equal(steps.steps[1].toolCalls.length, 0);
  assert.ok(steps.text.length > 0);

  const kinds = [];
  let input = '';
  const stream = streamText({ ...asked, toolChoice: { type: 'tool', toolName: 'countLegs' } });
  for await (const part of stream.fullStream) {
    assert.notEqual(part.type, 'error', String(part.error));
    kinds.push(part.type);
    if (part.type === 'tool-input-delta') input += part.delta;
  }
  assert.ok(kWords.includes(JSON.parse(input).animal), input);
  assert.ok(kinds.indexOf('tool-input-start') < kinds.indexOf('tool-call') && kinds.includes('tool-result'), kinds.join());
}

async function checkObjects(model) {
  const asked = { ...model, schema: kAnimal, maxOutputTokens: 60, prompt: 'Describe an animal.' };
  const { object, finishReason } = await generateObject(asked);
  assert.deepEqual(kAnimal.parse(object), object);
  assert.equal(finishReason, 'stop');
  const stream = streamObject(asked);
  let parts = 0;
  for await (const _ of stream.partialObjectStream) ++parts;
  assert.deepEqual(await stream.object, object);
  assert.ok(parts > 1, 'it comes in parts');
  const { object: word } = await generateObject({ ...model, output: 'enum', enum: kWords, maxOutputTokens: 60, prompt: 'Say a word.' });
  assert.ok(kWords.includes(word));
}

async function checkErrors(kvasir) {
  await assert.rejects(generateText({ model: kvasir('other'), prompt: kQuestion, maxRetries: 0 }),
    (error) => error.statusCode === 404 && /other/.test(error.message));
}

const server = await startServer(process.argv[2], findModel());
const kvasir = createOpenAICompatible({ name: 'kvasir', baseURL: `${server.base}/v1`, supportsStructuredOutputs: true,
  includeUsage: true });
const asked = await fetch(`${server.base}/v1/chat/completions`, { method: 'POST', body: JSON.stringify({
  messages: [{ role: 'user', content: kQuestion }], max_tokens: kLimit, temperature: 0 }) });
const answer = (await asked.json()).choices[0].message.content;
const model = { model: kvasir('m'), temperature: 0, maxRetries: 0 };
for (const check of [checkText, checkTools, checkObjects]) {
  const began = Date.now();
  await check(model, answer);
  console.log(`${check.name}: ok (${(Date.now() - began) / 1000} s)`);
}
await checkErrors(kvasir);
assert.equal(await server.end(), 0);
