// Which tokens of one text are kept, and the texts of messages cut where that changes.

export class Tokens {
  constructor(request = '', sample = 0) {
    this.request = request;
    this.sample = sample;
    this.view = null;     // the newest that the server said
    this.texts = [];      // by token
    this.starts = [0];    // by token: where its text begins in `text`; one more at the end
    this.text = '';       // of all tokens but control tokens
    this.controls = new Set();
    this.levels = [];     // by bucket
  }

  get next() { return this.texts.length; }  // first token whose text is not known

  take(view) {
    this.view = view;
    for (const control of view.controls) this.controls.add(control);
    while (this.texts.length < view.from) this.push('');
    for (let i = this.texts.length - view.from; i < view.texts.length; ++i) this.push(view.texts[i]);
    const levels = [];
    for (let i = 0; i < view.kept_runs.length; i += 2)
      for (let n = view.kept_runs[i]; n > 0; --n) levels.push(view.kept_runs[i + 1]);
    this.levels = levels;
  }

  push(text) {
    if (!this.controls.has(this.texts.length)) this.text += text;
    this.texts.push(text);
    this.starts.push(this.text.length);
  }

  // Returns how a token is kept: {kind, share}. kind: sink, kept, part, evicted, or '' for one that has not entered.
  kept(token) {
    const { view } = this;
    if (view === null || token >= view.seen) return { kind: '', share: 0 };
    const share = this.levels[Math.floor(token / view.bucket)] / view.levels;
    if (!(share > 0)) return { kind: 'evicted', share: 0 };
    if (token < view.sinks) return { kind: 'sink', share };
    return { kind: share < 1 ? 'part' : 'kept', share };
  }

  // Returns the index of the token that the character `at` of `text` belongs to.
  tokenAt(at) {
    let low = 0;
    let high = this.texts.length;
    while (low + 1 < high) {
      const middle = (low + high) >> 1;
      if (this.starts[middle] <= at) low = middle;
      else high = middle;
    }
    return low;
  }

  // Cuts characters [begin, end) of `text` into pieces {text, kind, share} of tokens that are kept alike.
  pieces(begin, end) {
    const list = [];
    for (let token = this.tokenAt(begin); token < this.texts.length && this.starts[token] < end; ++token) {
      const text = this.text.slice(Math.max(begin, this.starts[token]), Math.min(end, this.starts[token + 1]));
      if (text) add(list, { text, ...this.kept(token) });
    }
    return list;
  }

  // All tokens from `first` on, control tokens among them as pieces of their own.
  allPieces(first = 0) {
    const list = [];
    for (let token = first; token < this.texts.length; ++token) {
      const control = this.controls.has(token);
      add(list, { text: this.texts[token], ...this.kept(token), control });
    }
    return list;
  }

  // Finds messages in the text that the model read, in order. Returns for each the pieces of its whole content, or null if
  // it is not found: a chat template may change a message. The last is the answer, if `answering`.
  messages(contents, answering) {
    let from = 0;
    return contents.map((content, i) => {
      if (answering && i + 1 === contents.length) return this.answer(content);
      for (const wanted of [content, content.trim()]) {
        const at = wanted ? this.text.indexOf(wanted, from) : -1;
        if (at < 0) continue;
        from = at + wanted.length;
        const before = content.indexOf(wanted);
        const around = [content.slice(0, before), content.slice(before + wanted.length)].map((text) => (text ? [{ text, kind: '', share: 0 }] : []));
        return [...around[0], ...this.pieces(at, from), ...around[1]];
      }
      return null;
    });
  }

  // The answer begins behind the prompt; what of it the server has not told yet is one piece of kind ''.
  answer(content) {
    if (this.view === null || this.view.prompt_tokens >= this.starts.length) return null;
    const begin = this.starts[this.view.prompt_tokens];
    let same = 0;
    while (begin + same < this.text.length && same < content.length && this.text[begin + same] === content[same]) ++same;
    if (same === 0) return null;
    const list = this.pieces(begin, begin + same);
    if (same < content.length) list.push({ text: content.slice(same), kind: '', share: 0 });
    return list;
  }
}

function add(list, piece) {
  const last = list.at(-1);
  if (last && last.kind === piece.kind && last.share === piece.share && !last.control && !piece.control) last.text += piece.text;
  else list.push(piece);
}

// Returns the pieces of characters [begin, end) of what `pieces` cover.
export function cutPieces(pieces, begin, end) {
  const list = [];
  let at = 0;
  for (const piece of pieces) {
    if (at >= end) break;
    const text = piece.text.slice(Math.max(0, begin - at), Math.max(0, end - at));
    if (text) list.push({ ...piece, text });
    at += piece.text.length;
  }
  return list;
}

const kMeaning = { sink: 'attention sink: never evicted', kept: 'kept', evicted: 'evicted' };

// Returns the element of a piece in the colour of its kind.
export function markOf(piece) {
  const mark = document.createElement('mark');
  mark.className = piece.kind + (piece.control ? ' control' : '');
  mark.textContent = piece.text;
  mark.title = kMeaning[piece.kind] ?? `kept in ${Math.round(piece.share * 100)}% of heads or layers`;
  if (piece.kind === 'part') mark.style.setProperty('--share', `${piece.share * 100}%`);
  return mark;
}

// Shows pieces in an element, if they are not those that it shows already. All text stays text.
export function showPieces(element, pieces) {
  const shown = JSON.stringify(pieces);
  if (element.shown === shown) return;
  element.shown = shown;
  element.replaceChildren(...pieces.map((piece) => (piece.kind || piece.control ? markOf(piece) : piece.text)));
}
