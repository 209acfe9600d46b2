// The conversation: what was said, and the request that is under way.
import { apiKey, ApiError, events } from './api.js';
import { showPieces } from './tokens.js';

const byId = (id) => document.getElementById(id);

export function bytesText(bytes) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let unit = 0;
  let value = bytes;
  while (value >= 1024 && unit + 1 < units.length) { value /= 1024; ++unit; }
  return `${unit === 0 ? value : value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ${units[unit]}`;
}

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

export class Chat {
  // on: started(), watching(request id, body)
  constructor(on) {
    this.on = on;
    this.model = undefined;
    this.said = [];        // {role, content, element, body, note}
    this.flight = null;    // AbortController of the request under way
    this.request = '';     // id of the newest request
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
    this.clear();
  }

  clear() {
    this.stop();
    this.said = [];
    this.request = '';
    const hint = document.createElement('p');
    hint.className = 'hint';
    hint.textContent = 'Say something, and watch which tokens the KV cache keeps. '
      + 'A small window, such as streaming:window=60 in the settings, shows most.';
    byId('messages').replaceChildren(hint);
    byId('again').disabled = true;
  }

  stop() { this.flight?.abort(); }

  send() {
    const text = byId('prompt').value;
    if (this.flight !== null || !text.trim()) return;
    byId('prompt').value = '';
    this.add('user', text);
    this.ask();
  }

  regenerate() {
    if (this.flight !== null) return;
    const last = this.said.at(-1);
    if (last?.role === 'assistant') { this.said.pop(); last.element.remove(); }
    if (this.said.at(-1)?.role === 'user') this.ask();
    byId('prompt').focus();
  }

  add(role, content) {
    if (this.said.length === 0) byId('messages').replaceChildren();
    const element = document.createElement('article');
    element.className = role;
    const who = document.createElement('h3');
    who.textContent = { user: 'You', assistant: this.model ?? 'Model', system: 'System' }[role];
    const body = document.createElement('div');
    body.className = 'body';
    body.textContent = content;
    const note = document.createElement('p');
    note.className = 'note';
    element.append(who, body, note);
    byId('messages').append(element);
    const message = { role, content, element, body, note, unshown: '' };
    this.said.push(message);
    this.scroll(true);
    return message;
  }

  // Keeps the end in sight, unless the reader scrolled away from it.
  scroll(always = false) {
    const box = byId('messages');
    if (always || box.scrollHeight - box.scrollTop - box.clientHeight < 120) box.scrollTop = box.scrollHeight;
  }

  async ask() {
    const { policy, codec, system, temperature, max_tokens } = settings();
    const messages = this.said.map(({ role, content }) => ({ role, content }));
    if (system) messages.unshift({ role: 'system', content: system });
    const body = {
      model: this.model, messages, temperature, max_tokens, stream: true, stream_options: { include_usage: true },
      kv: { inspect: true, ...(policy && { policy }), ...(codec && { codec }) },
    };
    const flight = this.flight = new AbortController();
    this.busy(true);
    this.system = system;
    const answer = this.add('assistant', '');
    answer.element.classList.add('live');
    this.request = '';
    this.on.started();
    const end = { began: 0, usage: null, kv: null, stopped: false };
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
    answer.element.classList.remove('live');
    this.finish(answer, end);
    this.flight = null;
    this.busy(false);
  }

  // Shows what came since the last frame at once: a layout for each token would make the page fall behind the model.
  hear(answer, text) {
    answer.content += text;
    if (!answer.unshown) requestAnimationFrame(() => this.show(answer));
    answer.unshown += text;
  }

  show(answer) {
    if (!answer.unshown) return;
    answer.body.append(answer.unshown);
    answer.unshown = '';
    answer.body.shown = null;
    this.scroll();
  }

  finish(answer, { began, usage, kv, stopped }) {
    this.show(answer);
    if (answer.failed) return;
    const parts = stopped ? ['stopped'] : [];
    if (usage) {
      const seconds = (performance.now() - began) / 1000;
      parts.push(`${usage.completion_tokens} tokens, ${Math.round(usage.completion_tokens / seconds)} a second`);
      answer.cached = kv?.cached ?? usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    if (kv) {
      parts.push(kv.policy, kv.codec, `kept ${kv.kept} of ${kv.seen}`, `${answer.cached} from the prefix cache`, bytesText(kv.bytes));
      if (kv.cache_miss) parts.push(`not more, as ${kv.cache_miss}`);
      if (kv.finish_reason && kv.finish_reason !== 'end') parts.push(`ended: ${kv.finish_reason}`);
    }
    answer.note.textContent = parts.join(' · ');
    byId('announce').textContent = answer.content ? `${answer.content} ${answer.note.textContent}` : answer.note.textContent;
    this.scroll();
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
      if (question && !byId('prompt').value) byId('prompt').value = question.content;
    }
    if (error.status === 401) {
      byId('settings').open = true;
      byId('key').focus();
      if (!apiKey()) message.textContent += '. Give an API key in the settings.';
    }
    this.scroll(true);
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
    this.said.forEach((message, i) => {
      message.unshown = '';
      showPieces(message.body, pieces[i] ?? [{ text: message.content, kind: '', share: 0 }]);
    });
    this.scroll();
  }
}
