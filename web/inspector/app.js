// The Inspector: puts the conversation and the cache together.
import { ApiError, apiKey, events, getJson, setApiKey } from './api.js';
import { CachePanel } from './cache.js';
import { Chat, settings } from './chat.js';
import { Documents } from './documents.js';
import { recall, recallJson, remember } from './storage.js';
import { Tokens } from './tokens.js';

const byId = (id) => document.getElementById(id);
const kPresets = ['full', 'streaming:window=60', 'streaming:window=252', 'cascade:size=64', 'h2o:budget=64', 'tova:budget=64', 'snapkv:budget=64',
  'snapkv:budget=64+lethe'];

let tokens = new Tokens();
let watching = null;  // AbortController of the stream of the cache
let policies = [];
let plans = true;     // whether the server makes any
let checked = null;   // {policy, fault}: the policy that was asked about last, and a promise of what is wrong with it

const kSettings = 'kvasir.settings';
const kFields = ['policy', 'codec', 'system', 'temperature', 'max-tokens', 'prompt', 'markdown'];
const kept = recallJson(kSettings) ?? {};
for (const id of kFields) restoreField(id);

const chat = new Chat({
  started: () => panel.reset(),
  watching: (request, body) => { watch(request, 0); plan(body); },
  allowed: async () => {
    const good = !await policyFault();
    if (!good) {
      byId('settings').open = true;
      byId('policy').focus();
    }
    return good;
  },
}, new Documents());
tokens = new Tokens(chat.request);
const panel = new CachePanel((request, sample) => { panel.reset(); watch(request, sample); });

function watch(request, sample) {
  tokens = new Tokens(request, sample);
  watching?.abort();
}

function connection(text, good) {
  if (byId('connection').textContent !== text) byId('connection').textContent = text;
  byId('connection').classList.toggle('good', good);
}

function take(state) {
  connection('live', true);
  const { selected } = state;
  if (selected && selected.request === tokens.request && selected.sample === tokens.sample) tokens.take(selected);
  panel.update(state, tokens);
  chat.colour(tokens);
}

// Follows the cache as long as the page is open; another sequence to watch aborts the stream, and it begins anew.
async function follow() {
  for (;;) {
    const stream = watching = new AbortController();
    try {
      const path = `v1/kv/live?request=${encodeURIComponent(tokens.request)}&sample=${tokens.sample}&from=${tokens.next}`;
      for await (const state of events(path, { signal: stream.signal })) {
        if (stream.signal.aborted) break;
        take(state);
      }
      if (!stream.signal.aborted) await pause(1000);
    } catch (error) {
      if (error.name === 'AbortError') continue;
      connection(error instanceof ApiError ? error.message : 'no connection to the server', false);
      await pause(error.status === 401 ? 1e9 : 2000);
    }
  }
}

let wake = () => {};
function pause(milliseconds) {
  return new Promise((resolve) => {
    wake = resolve;
    setTimeout(resolve, Math.min(milliseconds, 2 ** 31 - 1));
  });
}

async function plan(body) {
  if (!plans) return;
  try {
    const { stream, stream_options, ...rest } = body;
    const answer = await getJson('v1/kv/plan', { body: rest });
    panel.plan = answer;
    panel.planned();
  } catch (error) {  // the request itself says what is wrong with it
    plans = error.status !== 404;
  }
}

// Returns what the server has against the policy that is typed, or '': a plan for it is asked for. Where nothing can be
// learnt, the request itself says what is wrong with it.
function policyFault() {
  const { policy } = settings();
  if (checked?.policy === policy) return checked.fault;
  const asked = checked = { policy, fault: plans && policy ? askAbout(policy) : Promise.resolve('') };
  asked.fault.then((fault) => {
    if (checked !== asked) return;
    if (fault === null) checked = null;
    showFault(fault ?? '');
  });
  return asked.fault;
}

async function askAbout(policy) {
  try {
    await getJson('v1/kv/plan', { body: { prompt_tokens: 1, max_tokens: 1, kv: { policy } } });
    return '';
  } catch (error) {
    if (error.status === 400) return error.message;
    plans &&= error.status !== 404;
    return null;
  }
}

function showFault(fault) {
  byId('policy-fault').textContent = fault;
  byId('policy').setAttribute('aria-invalid', fault !== '');
  describe();
}

let typing = 0;  // timer

function checkSoon() {
  clearTimeout(typing);
  typing = setTimeout(policyFault, 600);
}

// A field has what was typed into it before the page was loaded again.
function restoreField(id) {
  if (typeof kept[id] === 'boolean') byId(id).checked = kept[id];
  else if (typeof kept[id] === 'string') byId(id).value = kept[id];
}

function keepSettings() {
  const now = kFields.map((id) => [id, byId(id).type === 'checkbox' ? byId(id).checked : byId(id).value]);
  remember(kSettings, JSON.stringify({ ...Object.fromEntries(now), ...('codec' in kept && { codec: kept.codec }) }));
}

async function load() {
  try {
    const models = await getJson('v1/models');
    chat.model = models.data[0].id;
    byId('model').textContent = chat.model;
    const found = await getJson('v1/kv/policies');
    policies = found.policies;
    if (found.default) byId('policy').placeholder = `the server's: ${found.default}`;
    const names = new Set(policies.map(({ name }) => name));
    const specs = new Set([...kPresets.filter((spec) => names.has(spec.split(':')[0])), ...names]);
    byId('policies').replaceChildren(...[...specs].map((spec) => {
      const option = document.createElement('option');
      option.value = spec;
      return option;
    }));
    offerCodecs(found.codecs ?? []);
    describe();
  } catch (error) {
    connection(error.message, false);
    if (error.status === 401) {
      byId('settings').open = true;
      byId('key').focus();
    }
  }
}

// The first is the server's own. One alone is no choice.
function offerCodecs(codecs) {
  const chosen = kept.codec ?? byId('codec').value;
  delete kept.codec;
  byId('codec').replaceChildren(...codecs.map((codec, index) => {
    const option = document.createElement('option');
    option.value = index === 0 ? '' : codec;
    option.textContent = index === 0 ? `the server's: ${codec}` : codec;
    return option;
  }));
  byId('codec').value = codecs.indexOf(chosen) > 0 ? chosen : '';
  byId('codec').parentElement.hidden = codecs.length < 2;
}

function describe() {
  const { policy, codec, temperature, max_tokens } = settings();
  const parts = policy.split('+').map((part) => policies.find(({ name }) => name === part.split(':')[0])).filter(Boolean);
  byId('policy-note').textContent = parts.map((part) => part.summary
    + (part.options.length ? ` Options: ${part.options.map((option) => `${option.name} (${option.default})`).join(', ')}.` : '')).join(' ');
  const invalid = byId('policy').getAttribute('aria-invalid') === 'true';
  byId('settings-summary').textContent = [`${policy || 'default policy'}${invalid ? ' (not valid)' : ''}`, ...(codec ? [codec] : []),
    `temperature ${temperature ?? 'default'}`, max_tokens ? `at most ${max_tokens} tokens` : 'no limit of tokens'].join(' · ');
}

function theme(value) {
  if (value) document.documentElement.dataset.theme = value;
  else delete document.documentElement.dataset.theme;
  panel.draw();
}

function view(name) {
  document.querySelector('main').dataset.view = name;
  for (const button of byId('views').children) button.setAttribute('aria-pressed', button.dataset.view === name);
  panel.draw();
}

byId('settings').addEventListener('input', describe);
byId('policy').addEventListener('input', checkSoon);
byId('policy').addEventListener('change', policyFault);
window.addEventListener('pagehide', keepSettings);
byId('key').value = apiKey();
byId('key').addEventListener('change', () => { setApiKey(byId('key').value); checked = null; load(); wake(); });
byId('views').addEventListener('click', (event) => event.target.dataset.view && view(event.target.dataset.view));
const kTheme = 'kvasir.theme';
byId('theme').value = recall(kTheme, 'localStorage') ?? '';
byId('theme').addEventListener('change', () => {
  theme(byId('theme').value);
  remember(kTheme, byId('theme').value, 'localStorage');
});
matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => panel.draw());
theme(byId('theme').value);
describe();
policyFault();
load();
follow();
