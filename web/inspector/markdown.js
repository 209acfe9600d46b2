// Shows Markdown as elements, each character in the colour of its token. marked finds the structure; all text stays text.
import { Lexer } from './marked.js';
import { markOf } from './tokens.js';

// A part of the source: its text, and where each character of it stands. `at` is a number where they stand side by side,
// else a list. `take` moves a cursor through it.
class Part {
  constructor(text, at) {
    this.text = text;
    this.at = at;
    this.cursor = 0;
  }

  where(i) { return typeof this.at === 'number' ? this.at + i : this.at[i] ?? this.at.at(-1) ?? 0; }

  slice(begin, end) {
    return new Part(this.text.slice(begin, end), typeof this.at === 'number' ? this.at + begin : this.at.slice(begin, end));
  }

  skip(pattern) { this.cursor += pattern.exec(this.text.slice(this.cursor))?.[0].length ?? 0; }

  // Returns `inner` as a part, found at the cursor or later. Quotes and lists have it without the start of each line,
  // tables without backslashes: then it is found line by line, and if need be character by character.
  take(inner) {
    const begin = this.text.indexOf(inner, this.cursor);
    if (begin >= 0) {
      this.cursor = begin + inner.length;
      return this.slice(begin, this.cursor);
    }
    const at = [];
    for (const line of inner.match(/[^\n]*\n|[^\n]+/g) ?? []) {
      const found = this.text.indexOf(line, this.cursor);
      if (found >= 0) {
        for (let i = 0; i < line.length; ++i) at.push(this.where(found + i));
        this.cursor = found + line.length;
        continue;
      }
      for (const unit of line.split('')) {
        const near = this.text.slice(this.cursor, this.cursor + 100).indexOf(unit);
        at.push(this.where(this.cursor + Math.max(near, 0)));
        this.cursor += near + 1;
      }
    }
    return new Part(inner, at);
  }
}

const kEntities = { amp: '&', lt: '<', gt: '>', quot: '"', apos: "'", nbsp: '\u00a0', hellip: '…', ndash: '–', mdash: '—', copy: '©' };

// Returns the part with its character references replaced; one that is not known stays as it is.
function decoded(part) {
  if (!part.text.includes('&')) return part;
  let text = '';
  const at = [];
  let from = 0;
  const copy = (end) => { for (; from < end; ++from) { text += part.text[from]; at.push(part.where(from)); } };
  for (const { 0: whole, 1: name, index } of part.text.matchAll(/&(#\d{1,7}|#[xX][\da-fA-F]{1,6}|[A-Za-z]+);/g)) {
    const code = name[0] !== '#' ? 0 : /[xX]/.test(name[1]) ? parseInt(name.slice(2), 16) : Number(name.slice(1));
    const stands = name[0] === '#' ? (code > 0 && code < 0x110000 ? String.fromCodePoint(code) : '\ufffd') : Object.hasOwn(kEntities, name) && kEntities[name];
    if (!stands) continue;
    copy(index);
    text += stands;
    for (let i = 0; i < stands.length; ++i) at.push(part.where(index));
    from = index + whole.length;
  }
  copy(part.text.length);
  return new Part(text, at);
}

// Returns the address if it is one of the web, else null.
function webAddress(href) {
  try {
    const { protocol } = new URL(href);
    return protocol === 'http:' || protocol === 'https:' ? href : null;
  } catch {
    return null;
  }
}

// Makes the elements of tokens. `leaves` collects the texts: {element, part}.
class Renderer {
  constructor() { this.leaves = []; }

  element(name, parent) {
    const made = document.createElement(name);
    parent.append(made);
    return made;
  }

  leaf(part, parent) {
    if (!part.text) return;
    const element = this.element('span', parent);
    element.textContent = part.text;
    this.leaves.push({ element, part, shown: '' });
  }

  tokens(tokens, source, parent) {
    for (const token of tokens) this.token(token, source.take(token.raw), parent);
  }

  token(token, part, parent) {
    const inside = (name) => this.tokens(token.tokens ?? [], part, this.element(name, parent));
    switch (token.type) {
      case 'space': case 'def': return;
      case 'heading': return inside(`h${Math.min(6, token.depth + 3)}`);  // the page has three levels above
      case 'paragraph': return inside('p');
      case 'blockquote': return inside('blockquote');
      case 'strong': case 'em': case 'del': return inside(token.type);
      case 'list': return this.list(token, part, parent);
      case 'table': return this.table(token, part, parent);
      case 'hr': case 'br': this.element(token.type, parent); return;
      case 'code':
        if (token.codeBlockStyle !== 'indented') part.skip(/^[^\n]*\n/);
        return this.leaf(part.take(token.text), this.element('code', this.scrolling('pre', parent)));
      case 'codespan':
        part.skip(/^`+/);
        return this.leaf(part.take(token.text), this.element('code', parent));
      case 'checkbox': return this.leaf(new Part(token.checked ? '☑ ' : '☐ ', part.where(0)), parent);
      case 'link': case 'image': return this.link(token, part, parent);
      case 'escape': return this.leaf(part.take(token.text), parent);
      case 'html': return this.leaf(part, token.block ? this.element('p', parent) : parent);
      default:
        if (token.tokens) return this.tokens(token.tokens, part, parent);
        return this.leaf(decoded(part), parent);
    }
  }

  // What may be wider than the answer scrolls, by keyboard too.
  scrolling(name, parent) {
    const made = this.element(name, parent);
    made.tabIndex = 0;
    return made;
  }

  list(token, part, parent) {
    const list = this.element(token.ordered ? 'ol' : 'ul', parent);
    if (token.ordered && token.start !== 1) list.start = token.start;
    for (const item of token.items) {
      const source = part.take(item.raw);
      source.skip(/^[ \t]*(?:[*+-]|\d{1,9}[.)])/);
      this.tokens(item.tokens, source, this.element('li', list));
    }
  }

  table(token, part, parent) {
    const box = this.scrolling('div', parent);
    box.className = 'table';
    const table = this.element('table', box);
    const row = (cells, name, section) => {
      const line = this.element('tr', section);
      for (const cell of cells) {
        const made = this.element(name, line);
        if (cell.align) made.className = cell.align;
        this.tokens(cell.tokens, part.take(cell.text), made);
      }
    };
    row(token.header, 'th', this.element('thead', table));
    part.skip(/^[^\n]*\n[^\n]*/);  // the rest of the head, and the rule below
    const body = this.element('tbody', table);
    for (const cells of token.rows) row(cells, 'td', body);
  }

  // A picture is never loaded: its description becomes a link. What leads elsewhere than to the web stays text.
  link(token, part, parent) {
    const href = webAddress(token.href);
    if (href === null) return this.leaf(part, parent);
    const link = this.element('a', parent);
    link.href = link.title = href;
    link.target = '_blank';
    link.rel = 'noopener noreferrer';
    if (token.type === 'link') this.tokens(token.tokens, part, link);
    else this.leaf(token.text ? part.take(token.text) : part, link);
  }
}

export class Markdown {
  constructor(element, pieces = null) {
    this.element = element;
    element.replaceChildren();
    element.classList.add('markdown');
    this.source = '';
    this.blocks = [];   // {raw, begin, elements, leaves}
    this.pieces = pieces;
    this.defines = false;  // whether addresses are given apart from their links
  }

  // Shows a source. One that goes on where the last ended is read again from its last two blocks on: earlier ones stay as
  // they are, until `whole` has them read again for the addresses that were given later.
  show(source, whole = false) {
    source = source.replace(/\r/g, ' ');  // as long as before, and marked changes nothing more
    let keep = 0;
    if (source.startsWith(this.source)) {
      keep = this.blocks.length;
      for (let solid = 0; keep > 0 && solid < 2; ) if (this.blocks[--keep].raw.trim()) ++solid;
    }
    this.source = source;
    this.read(keep);
    if (whole && this.defines) {
      this.cut(0);
      this.read(0);
    }
    this.colour(this.pieces);
  }

  // Reads the source from the block `first` on. Blocks that it finds again stay.
  read(first) {
    let begin = this.blocks[first]?.begin ?? 0;
    const tokens = this.lex(this.source.slice(begin));
    this.defines ||= Object.keys(tokens.links ?? {}).length > 0;
    let index = first;
    for (const token of tokens) {
      const there = this.blocks[index];
      if (there?.raw !== token.raw || there.begin !== begin || there.type !== token.type) {
        this.cut(index);
        this.blocks.push(this.block(token, begin));
      }
      begin += token.raw.length;
      ++index;
    }
    this.cut(index);
  }

  lex(text) {
    try {
      return new Lexer({ gfm: true }).lex(text);
    } catch {  // nested deeper than marked can follow
      return [{ type: 'html', block: true, raw: text }];
    }
  }

  cut(index) {
    for (const block of this.blocks.splice(index)) for (const element of block.elements) element.remove();
  }

  block(token, begin) {
    const fragment = document.createDocumentFragment();
    let renderer = new Renderer();
    try {
      renderer.token(token, new Part(token.raw, begin), fragment);
    } catch {
      renderer = new Renderer();
      fragment.replaceChildren();
      renderer.token({ type: 'html', block: true }, new Part(token.raw, begin), fragment);
    }
    const elements = [...fragment.children];
    this.element.append(fragment);
    return { raw: token.raw, type: token.type, begin, elements, leaves: renderer.leaves };
  }

  // Colours the text by pieces of the source {text, kind, share}, which cover it from its start.
  colour(pieces) {
    this.pieces = pieces;
    const ends = [];
    for (const { text } of pieces ?? []) ends.push((ends.at(-1) ?? 0) + text.length);
    let index = 0;
    for (const { leaves } of this.blocks) for (const leaf of leaves) {
      const { part } = leaf;
      const length = part.text.length;
      const runs = [];  // {end, piece}
      for (let i = 0; i < length; ) {
        const at = part.where(i);
        while (index > 0 && ends[index - 1] > at) --index;
        while (index < ends.length && ends[index] <= at) ++index;
        const piece = pieces?.[index];
        const next = typeof part.at === 'number' && piece ? Math.min(length, i + ends[index] - at) : piece ? i + 1 : length;
        if (runs.at(-1)?.piece === piece && runs.length > 0) runs.at(-1).end = next;
        else runs.push({ end: next, piece });
        i = next;
      }
      const shown = runs.every(({ piece }) => !piece?.kind) ? '' : runs.map(({ end, piece }) => `${end} ${piece?.kind} ${piece?.share}`).join();
      if (leaf.shown === shown) continue;
      leaf.shown = shown;
      let from = 0;
      leaf.element.replaceChildren(...runs.map(({ end, piece }) => {
        const text = part.text.slice(from, end);
        from = end;
        return piece?.kind ? markOf({ ...piece, text }) : text;
      }));
    }
  }
}
