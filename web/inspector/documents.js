// Text files for the next message: dropped on the page or chosen, shown as chips, removable until they are sent.
import { getJson } from './api.js';
import { bytesText, describeDocument } from './chat.js';

const byId = (id) => document.getElementById(id);
const kMostBytes = 2 ** 21;  // of one file; a server takes 8 MiB in one request unless it is told otherwise

// Returns {name, size, text}, or throws an Error that says why the file is refused.
async function read(file) {
  const name = file.name.replace(/\s+/g, ' ');
  if (file.size > kMostBytes) throw new Error(`${name} is too large: ${bytesText(file.size)}, and at most ${bytesText(kMostBytes)} are taken.`);
  let bytes;
  try {
    bytes = await file.arrayBuffer();
  } catch {
    throw new Error(`${name} could not be read.`);
  }
  let text;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch {
    throw new Error(`${name} is not a text file in UTF-8.`);
  }
  if (text.includes('\0')) throw new Error(`${name} is not a text file.`);
  if (!text.trim()) throw new Error(`${name} has no text.`);
  return { name, size: file.size, text };
}

export class Documents {
  constructor() {
    this.list = [];                   // {name, size, text, tokens?}
    this.ready = Promise.resolve();   // when all files are read
    byId('add').addEventListener('click', () => byId('files').click());
    byId('files').addEventListener('change', () => {
      this.add([...byId('files').files]);
      byId('files').value = '';  // the same file can be chosen again
    });
    const files = (event) => event.dataTransfer?.types.includes('Files');
    const aim = (is) => document.body.classList.toggle('aimed', is);
    document.addEventListener('dragover', (event) => {
      if (!files(event)) return;
      event.preventDefault();
      aim(true);
    });
    document.addEventListener('dragleave', (event) => { if (event.relatedTarget === null) aim(false); });
    document.addEventListener('drop', (event) => {
      if (!files(event)) return;
      event.preventDefault();
      aim(false);
      this.add([...event.dataTransfer.files]);
    });
  }

  add(files) {
    this.ready = this.ready.then(async () => {
      const refused = [];
      for (const file of files) {
        try {
          const document = await read(file);
          this.list.push(document);
          this.count(document);
        } catch (error) {
          refused.push(error.message);
        }
      }
      byId('document-error').textContent = refused.join(' ');
      this.draw();
      byId('prompt').focus();
    });
  }

  // Learns how many tokens a document has, if the server says so.
  async count(document) {
    try {
      const body = { prompt: document.text, add_special_tokens: false, parse_special: false };
      document.tokens = (await getJson('tokenize', { body })).count;
      this.draw();
    } catch { /* the chip goes without */ }
  }

  put(documents) {
    this.list = documents;
    byId('document-error').textContent = '';
    this.draw();
  }

  // Returns the documents, which the composer then no longer has.
  take() {
    const { list } = this;
    this.put([]);
    return list;
  }

  draw() {
    byId('documents').hidden = this.list.length === 0;
    byId('documents').replaceChildren(...this.list.map((each) => {
      const chip = document.createElement('li');
      const remove = document.createElement('button');
      remove.type = 'button';
      remove.textContent = '×';
      remove.setAttribute('aria-label', `Remove ${each.name}`);
      remove.addEventListener('click', () => {
        this.put(this.list.filter((other) => other !== each));
        byId('prompt').focus();
      });
      chip.append(describeDocument(each), remove);
      return chip;
    }));
  }
}
