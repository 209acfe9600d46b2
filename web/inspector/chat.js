// The conversation: what was said, and the request that is under way.
import { apiKey, ApiError, events } from './api.js';
import { Markdown } from './markdown.js';
import { recallJson, remember } from './storage.js';
import { cutPieces, showPieces } from './tokens.js';

const byId = (id) => document.getElementById(id);

export function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit + 1 < units.length) { value /= 1024; ++unit; }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}

export const describeDocument = ({ name, size, tokens }) =>
  [name, bytesText(size), ...(tokens ? [`${tokens.toLocaleString('en')} tokens`] : [])].join(' · ');

export function settings() {
  const temperature = byId('temperature').valueAsNumber;
  const most = byId('max-tokens').valueAsNumber;
  return {
    policy: byId('policy').value.trim(),
    codec: byId('codec').value,
    system: byId('system').value,
    temperature: Number.isNaN(temperature) ? undefined : temperature,
    max_tokens: Number.isNaN(most) ? undefined : most,
  };
}

const kKept = 'kvasir.chat';
const kMostKept = 2.5e6;  // characters that survive a reload: browsers keep about five million bytes for a page
const kPauseMs = 80;      // between two readings of an answer's Markdown, at least

// Why the prefix cache gave no more tokens of the prompt. `cached`: how many it gave.
function missText(miss, cached) {
  const rest = cached > 0 ? 'the rest' : 'the prompt';
  return {
    too_short: 'the prompt is shorter than one page',
    unknown: `${rest} is new to the server`,
    evicted: `${rest} had been cached, but was removed to make room`,
    expired: `${rest} had been cached, but its time was over`,
    policy: `${rest} is cached, but this policy cannot continue from it`,
    codec: `${rest} is cached, but in another codec`,
    thoughts_dropped: `${rest} is new, as the thoughts of earlier answers are left out`,
    no_room: `${rest} is cached, but there was no memory left to use it`,
    bypass: 'this request was not to use the cache',
  }[miss] ?? miss.replaceAll('_', ' ');
}

// Why an answer ended, unless the model was done.
function endText(reason, most) {
  return {
    end: '',
    stop: '',
    length: `stopped at the limit of ${most === undefined ? '' : `${most.toLocaleString('en')} `}tokens`,
    context: 'stopped: the model can read no longer text',
    kv_memory: 'stopped: the KV memory is full',
    cancelled: 'cancelled',
    failed: 'stopped by an error in the model’s numbers',
  }[reason] ?? `stopped: ${reason.replaceAll('_', ' ')}`;
}

// Returns what a message with documents tells the model, and where the documents and the message itself stand in it.
function compose(text, documents) {
  let content = '';
  const places = documents.map((document) => {
    content += `[${document.name}]\n`;
    const begin = content.length;
    content += document.text;
    const end = content.length;
    content += `\n[end of ${document.name}]\n\n`;
    return { begin, end };
  });
  return { content: content + text, places, own: content.length };
}

export class Chat {
  // on: started(), watching(request id, body), allowed() -> Promise of whether a request may be sent
  constructor(on, documents) {
    this.on = on;
    this.documents = documents;
    this.model = undefined;
    this.said = [];        // {role, content, text, documents, element, body, note, ...}
    this.flight = null;    // AbortController of the request under way, or of the one that is about to be
    this.request = '';     // id of the newest request
    this.rested = 0;       // when Markdown may be read again
    byId('composer').addEventListener('submit', (event) => { event.preventDefault(); this.send(); });
    byId('prompt').addEventListener('keydown', (event) => {
      if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      this.send();
    });
    document.addEventListener('keydown', (event) => { if (event.key === 'Escape') this.stop(); });
    byId('stop').addEventListener('click', () => { this.stop(); byId('prompt').focus(); });
    byId('again').addEventListener('click', () => this.regenerate());
    byId('new').addEventListener('click', () => { this.clear(); byId('prompt').focus(); });
    byId('markdown').addEventListener('change', () => this.drawAll());
    window.addEventListener('pagehide', () => this.save());
    try {
      this.clear(recallJson(kKept));
    } catch {  // kept by another version of the page
      this.clear();
    }
  }

  // Begins a conversation anew, or with what was kept of one.
  clear(kept = null) {
    this.stop();
    this.said = [];
    this.left = false;     // whether a reload left out the oldest messages
    this.request = '';
    const hint = document.createElement('p');
    hint.className = 'hint';
    hint.textContent = 'Say something, and watch which tokens the KV cache keeps. '
      + 'A small window, such as streaming:window=60 in the settings, shows most. You can also drop a text file here.';
    byId('messages').replaceChildren(hint);
    this.documents.put([]);
    if (Array.isArray(kept?.said)) this.restore(kept);
    byId('again').disabled = this.said.length === 0;
    this.save();
  }

  // What is kept survives a reload. Of a long conversation, the oldest messages are left out.
  save() {
    const said = this.said.filter(({ content, role }) => content || role === 'user').map(({ role, text, documents, who, note, live }) =>
      ({ role, text, documents, who, note: live ? 'stopped when the page was reloaded' : note.textContent }));
    let { left } = this;
    for (;;) {
      const kept = { said, left, request: this.request, system: this.system, attached: this.documents.list };
      const nothing = said.length + kept.attached.length === 0;
      const text = nothing ? '' : JSON.stringify(kept);
      if (text.length <= kMostKept && remember(kKept, text)) return;
      if (said.length === 0) break;
      const second = said.findIndex(({ role }, i) => i > 0 && role === 'user');
      said.splice(0, second < 0 ? said.length : second);
      left = true;
    }
    remember(kKept, '');
  }

  restore({ said, left, request, system, attached }) {
    for (const { role, text, documents, who, note } of said) {
      const message = this.add(role, text, documents, who);
      message.note.textContent = note;
      this.draw(message, true);
    }
    this.left = left;
    this.request = request;
    this.system = system;
    this.documents.put(attached ?? []);
    if (left) {
      const note = document.createElement('p');
      note.className = 'note';
      note.textContent = 'Earlier messages were too long to survive the reload.';
      byId('messages').prepend(note);
    }
    this.scroll();
  }

  stop() { this.flight?.abort(); }

  send() {
    if (!byId('prompt').value.trim() && this.documents.list.length === 0) return;
    this.ask(() => {
      const text = byId('prompt').value;
      byId('prompt').value = '';
      this.add('user', text, this.documents.take());
    });
  }

  regenerate() {
    this.ask(() => {
      const last = this.said.at(-1);
      if (last?.role === 'assistant') { this.said.pop(); last.element.remove(); }
    });
    byId('prompt').focus();
  }

  add(role, text, documents = [], who = { user: 'You', assistant: this.model ?? 'Model' }[role]) {
    if (this.said.length === 0) byId('messages').replaceChildren();
    const element = document.createElement('article');
    element.className = role;
    const name = document.createElement('h3');
    name.textContent = who;
    const body = document.createElement('div');
    body.className = 'body';
    body.textContent = text;
    const note = document.createElement('p');
    note.className = 'note';
    const { content, places, own } = compose(text, documents);
    const message = { role, who, text, documents, content, own, element, body, note, pieces: null, markdown: null, drawn: text.length };
    message.folds = documents.map((each, i) => this.fold(message, each, places[i]));
    element.append(name, ...message.folds.map(({ element: fold }) => fold), body, note);
    if (documents.length > 0 && !text.trim()) body.hidden = true;
    byId('messages').append(element);
    this.said.push(message);
    this.scroll();
    return message;
  }

  // A document within a message: its name, and its text once that is opened.
  fold(message, each, place) {
    const element = document.createElement('details');
    element.className = 'document';
    const summary = document.createElement('summary');
    summary.textContent = describeDocument(each);
    const body = document.createElement('div');
    body.className = 'body';
    element.append(summary, body);
    element.addEventListener('toggle', () => this.drawDocuments(message));
    return { element, body, place };
  }

  drawDocuments({ content, pieces, folds }) {
    for (const { element, body, place } of folds) {
      if (!element.open) continue;
      const plain = [{ text: content.slice(place.begin, place.end), kind: '', share: 0 }];
      showPieces(body, pieces ? cutPieces(pieces, place.begin, place.end) : plain);
    }
  }

  scroll() { byId('messages').scrollTop = byId('messages').scrollHeight; }

  // Makes a change and keeps the end in sight, unless the reader has scrolled away from it.
  following(change) {
    const box = byId('messages');
    const follows = box.scrollHeight - box.scrollTop - box.clientHeight < 120;
    change();
    if (follows) this.scroll();
  }

  // Asks for an answer to what was said, once `begin` has put it into the conversation.
  async ask(begin) {
    if (this.flight !== null) return;
    const flight = this.flight = new AbortController();
    this.busy(true);
    try {
      await this.documents.ready;
      if (await this.on.allowed() && !flight.signal.aborted) {
        begin();
        if (this.said.at(-1)?.role === 'user') await this.answer(flight);
      }
    } finally {
      this.flight = null;
      this.busy(false);
      this.save();
    }
  }

  async answer(flight) {
    const { policy, codec, system, temperature, max_tokens } = settings();
    const messages = this.said.map(({ role, content }) => ({ role, content }));
    if (system) messages.unshift({ role: 'system', content: system });
    const body = {
      model: this.model, messages, temperature, max_tokens, stream: true, stream_options: { include_usage: true },
      kv: { inspect: true, ...(policy && { policy }), ...(codec && { codec }) },
    };
    this.system = system;
    const answer = this.add('assistant', '');
    answer.live = true;
    answer.element.classList.add('live');
    this.request = '';
    this.save();
    this.on.started();
    const end = { began: 0, usage: null, kv: null, stopped: false, most: max_tokens };
    try {
      for await (const event of events('v1/chat/completions', { body, signal: flight.signal })) {
        if (event.error) throw new ApiError(500, event.error.message);
        if (this.request !== event.id) {
          this.request = event.id;
          end.began = performance.now();
          this.on.watching(event.id, body);
        }
        if (event.kv) end.kv = event.kv;
        if (event.usage) end.usage = event.usage;
        const text = event.choices?.[0]?.delta?.content;
        if (text) this.hear(answer, text);
      }
    } catch (error) {
      end.stopped = error.name === 'AbortError';
      if (!end.stopped) this.fail(answer, error);
    }
    answer.live = false;
    answer.element.classList.remove('live');
    this.finish(answer, end);
  }

  // Shows what came since the last time at once: a layout for each token would make the page fall behind the model. The
  // longer it takes to read the Markdown, the longer it rests.
  hear(answer, text) {
    answer.content = answer.text += text;
    if (answer.due) return;
    answer.due = true;
    setTimeout(() => requestAnimationFrame(() => {
      if (answer.due) this.draw(answer);
    }), Math.max(0, this.rested - performance.now()));
  }

  // Shows an answer as far as it is known. `whole`: nothing more comes.
  draw(message, whole = false) {
    message.due = false;
    if (message.role !== 'assistant') return;
    const began = performance.now();
    this.following(() => {
      if (byId('markdown').checked) {
        message.markdown ??= new Markdown(message.body, message.pieces);
        message.markdown.show(message.text, whole);
      } else {
        message.body.append(message.text.slice(message.drawn));
        message.body.shown = null;
      }
    });
    message.drawn = message.text.length;
    this.rested = performance.now() + Math.max(kPauseMs, 8 * (performance.now() - began));
  }

  // Shows all answers anew, as Markdown or as they are written.
  drawAll() {
    for (const message of this.said) {
      if (message.role !== 'assistant') continue;
      message.body.replaceChildren();
      message.body.classList.remove('markdown');
      message.markdown = null;
      message.drawn = 0;
      this.draw(message, !message.live);
      this.paint(message);
    }
  }

  finish(answer, { began, usage, kv, stopped, most }) {
    this.draw(answer, true);
    if (answer.failed) return;
    const parts = stopped ? ['stopped'] : [];
    if (usage) {
      const seconds = (performance.now() - began) / 1000;
      parts.push(`${usage.completion_tokens} tokens, ${Math.round(usage.completion_tokens / seconds)} per second`);
    }
    if (kv) {
      const cached = kv.cached ?? usage?.prompt_tokens_details?.cached_tokens ?? 0;
      const ended = kv.finish_reason ? endText(kv.finish_reason, most) : '';
      if (ended) parts.push(ended);
      parts.push(`policy ${kv.policy}`, `codec ${kv.codec}`, `kept ${kv.kept} of ${kv.seen} tokens in ${bytesText(kv.bytes)}`,
        `${cached} of the prompt’s tokens from the prefix cache${kv.cache_miss ? ` (${missText(kv.cache_miss, cached)})` : ''}`);
    }
    this.following(() => { answer.note.textContent = parts.join(' · '); });
    byId('announce').textContent = `${answer.body.innerText} ${answer.note.textContent}`.trim();
  }

  fail(answer, error) {
    answer.failed = true;
    const message = document.createElement('p');
    message.className = 'error';
    message.setAttribute('role', 'alert');
    message.textContent = error.message;
    answer.element.append(message);
    if (!answer.content) {  // neither question nor answer is part of the conversation: the question can be sent again
      answer.body.remove();
      this.said.pop();
      const question = this.said.at(-1)?.role === 'user' ? this.said.pop() : null;
      if (question && !byId('prompt').value && this.documents.list.length === 0) {
        byId('prompt').value = question.text;
        this.documents.put(question.documents);
      }
    }
    if (error.status === 401) {
      byId('settings').open = true;
      byId('key').focus();
      if (!apiKey()) message.textContent += '. Give an API key in the settings.';
    }
    this.scroll();
  }

  busy(is) {
    byId('send').hidden = is;
    byId('stop').hidden = !is;
    byId('again').disabled = is || this.said.length === 0;
  }

  // Colours the conversation by what is kept of the newest request.
  colour(tokens) {
    if (!this.request || tokens.request !== this.request) return;
    const contents = this.said.map(({ content }) => content);
    const answering = this.said.at(-1)?.role === 'assistant';
    const skip = this.system ? 1 : 0;
    const pieces = tokens.messages(skip ? [this.system, ...contents] : contents, answering).slice(skip);
    this.following(() => this.said.forEach((message, i) => {
      message.pieces = pieces[i];
      this.paint(message);
    }));
  }

  paint(message) {
    const { body, content, own, pieces } = message;
    if (message.role === 'assistant' && byId('markdown').checked) {
      message.markdown?.colour(pieces);
      return;
    }
    showPieces(body, pieces ? cutPieces(pieces, own, content.length) : [{ text: content.slice(own), kind: '', share: 0 }]);
    message.drawn = message.text.length;
    this.drawDocuments(message);
  }
}
