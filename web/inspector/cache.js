// The KV cache: memory, the sequence that is watched, and all sequences.
import { bytesText } from './chat.js';
import { drawGrowth, drawPages, drawTokens } from './draw.js';
import { showPieces } from './tokens.js';

const byId = (id) => document.getElementById(id);
const kTitles = { Seen: 'tokens of the prompt and of the answer so far', Kept: 'tokens that the policy keeps now', Reused: 'prompt tokens from the prefix cache' };
const kMostShown = 4000;  // tokens of the text as the model reads it: the newest

function element(name, className, ...children) {
  const made = document.createElement(name);
  if (className) made.className = className;
  made.append(...children);
  return made;
}

const count = (number) => number.toLocaleString('en');

export class CachePanel {
  // onWatch(request, sample): the reader wants to see another sequence.
  constructor(onWatch) {
    this.onWatch = onWatch;
    this.points = [];
    this.plan = null;
    byId('text').addEventListener('toggle', () => this.showText());
    byId('token-map').addEventListener('mousemove', (event) => this.pointAt(event));
    new ResizeObserver(() => this.draw()).observe(byId('cache'));
  }

  // Another sequence is watched from now on.
  reset() {
    this.points = [];
    this.plan = null;
    this.planned();
  }

  update(state, tokens) {
    this.state = state;
    this.tokens = tokens;
    this.memory();
    this.sequence();
    this.sequences();
    this.draw();
    this.showText();
  }

  memory() {
    const { memory, selected, sequences } = this.state;
    const own = selected && selected.state !== 'ended' ? selected.bytes : 0;
    const cached = memory.prefix ?? 0;
    const requests = memory.requests ?? sequences.reduce((sum, each) => sum + each.bytes, 0);
    const parts = [
      ['own', 'This sequence', Math.min(own, memory.used)],
      ['others', 'Other requests', Math.max(0, Math.min(requests, memory.used - cached) - own)],
      ['prefix', 'Prefix cache', cached],
    ];
    const rest = memory.used - parts.reduce((sum, [, , bytes]) => sum + bytes, 0);
    if (rest > 0) parts.push(['rest', 'Sessions and others', rest]);
    parts.push(['free', 'Free', memory.budget - memory.used]);
    byId('memory-total').textContent = `${bytesText(memory.used)} of ${bytesText(memory.budget)}`;
    const bar = byId('memory-bar');
    bar.dataset.used = memory.used;
    bar.dataset.budget = memory.budget;
    bar.setAttribute('aria-label', parts.map(([, name, bytes]) => `${name}: ${bytesText(bytes)}`).join(', '));
    bar.replaceChildren(...parts.map(([part, , bytes]) => {
      const piece = element('div', part);
      piece.style.flexGrow = bytes / memory.budget;
      return piece;
    }));
    byId('memory-parts').replaceChildren(...parts.map(([part, name, bytes]) => {
      const value = element('dd', '', bytesText(bytes));
      value.dataset.bytes = bytes;
      value.dataset.part = part;
      return element('div', '', element('dt', part, name), value);
    }));
    this.planned();
  }

  planned() {
    const { plan } = this;
    byId('plan').hidden = plan === null;
    if (plan === null) return;
    const now = this.state?.selected?.bytes ?? 0;
    byId('plan').textContent = `This request needs ${plan.kv_exact === false ? 'at most ' : ''}${bytesText(plan.kv_bytes)} of KV memory at its peak`
      + (now > 0 ? `; it holds ${bytesText(now)} now, ${Math.round((100 * now) / plan.kv_bytes)}% of that.` : '.');
  }

  sequence() {
    const { selected } = this.state;
    const { view } = this.tokens;
    byId('watched').textContent = view === null ? '' : `${this.tokens.request}${view.sample ? ` #${view.sample}` : ''}, ${view.state}`;
    const figures = [];
    if (view !== null) {
      const kept = element('span', '', count(view.kept));
      if (view.seen) kept.append(' ', element('small', '', `${Math.round((100 * view.kept) / view.seen)}%`));
      figures.push(['Policy', view.policy], ['Seen', count(view.seen)], ['Kept', kept],
        ['Evicted', count(Math.max(0, view.seen - view.kept))],
        ['Reused', count(view.cached)],
        ['Pages', count(view.pages)], ['Bytes', bytesText(view.bytes)]);
    } else {
      figures.push(['Policy', '–'], ['Seen', '–'], ['Kept', '–'], ['Evicted', '–'], ['Reused', '–'], ['Pages', '–'], ['Bytes', '–']);
    }
    byId('figures').replaceChildren(...figures.map(([name, value]) => {
      const term = element('dt', '', name);
      term.title = kTitles[name] ?? '';
      return element('div', '', term, element('dd', '', value));
    }));
    if (selected && selected.seen > 0 && this.points.at(-1)?.seen !== selected.seen)
      this.points.push({ seen: selected.seen, kept: selected.kept });
  }

  draw() {
    if (!this.tokens || byId('cache').clientWidth === 0) return;
    const { tokens, points } = this;
    const { view } = tokens;
    drawTokens(byId('token-map'), tokens);
    const pages = drawPages(byId('page-map'), view);
    byId('growth').hidden = byId('growth-title').hidden = points.length < 2;
    if (points.length >= 2) drawGrowth(byId('growth'), points);
    const last = points.at(-1);
    byId('growth').setAttribute('aria-label', last ? `Chart: ${last.kept} tokens kept of ${last.seen} seen` : '');
    byId('map-note').textContent = view === null ? 'no request yet'
      : view.bucket > 1 ? `one cell stands for ${count(view.bucket)} tokens, oldest first` : 'one cell is one token, oldest first';
    byId('token-map').setAttribute('aria-label', view === null ? 'No tokens' : `Map of ${view.seen} tokens, of which ${view.kept} are kept`);
    byId('page-note').textContent = view === null ? '' : view.tables === 1
      ? `${pages} pages of ${view.page_tokens} tokens, each filled as far as it holds any`
      : `${view.tables_shown} of ${view.tables} page tables (layers or heads that keep the same tokens share one), one per row`;
    byId('page-map').setAttribute('aria-label', view === null ? 'No pages' : `Map of ${pages} pages in ${view.tables_shown} page tables`);
  }

  showText() {
    if (!byId('text').open || !this.tokens) return;
    const pieces = this.tokens.allPieces(Math.max(0, this.tokens.next - kMostShown));
    showPieces(byId('text-tokens'), pieces);
  }

  // Names the token under the mouse.
  pointAt(event) {
    const { cell } = event.target;
    const view = this.tokens?.view;
    if (!cell || !view) return;
    const bucket = Math.floor(event.offsetY / cell.size) * cell.columns + Math.floor(event.offsetX / cell.size);
    const token = bucket * view.bucket;
    if (token >= view.seen) return;
    const { kind } = this.tokens.kept(token);
    event.target.title = `token ${token}: ${JSON.stringify(this.tokens.texts[token] ?? '')}, ${{ part: 'kept in part', sink: 'attention sink, kept' }[kind] ?? kind}`;
  }

  sequences() {
    const { sequences, sequences_left_out: leftOut, load, tenant } = this.state;
    const parts = [];
    if (load) {
      parts.push(`${load.running} running`, `${load.waiting} waiting`, `${load.preemptions} ${load.preemptions === 1 ? 'preemption' : 'preemptions'} so far`);
      if (load.prefix_queries > 0)
        parts.push(`${Math.round((100 * load.prefix_hits) / load.prefix_queries)}% of prompt tokens from the prefix cache`);
    }
    byId('load').textContent = parts.join(' · ');
    const box = byId('sequences');
    if (sequences.length === 0) {
      box.shown = null;
      box.replaceChildren(element('p', 'note', 'No request is running.'));
      return;
    }
    const names = ['', 'State', 'Policy', 'Seen', 'Kept', 'Pages', 'Bytes'];
    const rows = sequences.map((each) => {
      const watched = each.request === this.tokens.request && each.sample === this.tokens.sample;
      const button = element('button', '', `${each.request}${each.sample ? ` #${each.sample}` : ''}`);
      button.type = 'button';
      button.setAttribute('aria-pressed', watched);
      button.title = 'Watch this sequence';
      button.dataset.request = each.request;
      button.dataset.sample = each.sample;
      const cells = [each.state, each.policy, count(each.seen), count(each.kept), count(each.pages), bytesText(each.bytes)];
      return element('tr', '', element('th', '', button), ...cells.map((cell) => element('td', '', cell)));
    });
    const focused = document.activeElement?.dataset?.request;
    const focusedSample = document.activeElement?.dataset?.sample;
    const table = element('table', '', element('thead', '', element('tr', '', ...names.map((name) => element('th', '', name)))),
      element('tbody', '', ...rows));
    if (tenant) table.prepend(element('caption', '', `Tenant ${tenant}`));
    const more = leftOut > 0 ? [element('p', 'note', `and ${count(leftOut)} more`)] : [];
    box.replaceChildren(table, ...more);
    for (const button of box.querySelectorAll('button')) {
      button.addEventListener('click', () => this.onWatch(button.dataset.request, Number(button.dataset.sample)));
      if (button.dataset.request === focused && button.dataset.sample === focusedSample) button.focus({ preventScroll: true });
    }
  }
}
