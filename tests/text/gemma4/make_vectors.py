#!/usr/bin/env python3
"""Writes the part of Gemma 4's vocabulary that some texts need, and the tokens of the texts.

make_vectors.py VOCABULARY TEXTS

VOCABULARY: llama.cpp's models/ggml-vocab-gemma-4.gguf, beside it .inp and .out, the published vectors: texts and their
tokens by transformers. TEXTS: tests/text/smollm2/lines.jsonl; the tokens of a part of them are those of the Python package
tokenizers with the whole vocabulary. Writes vectors.json beside this file:
  pieces, kinds   of the part: special pieces, bytes, the characters of the texts, and all that merges make in the texts
  merges          of the whole list, those that texts may use: all whose result is in one of them
  texts, tokens   as numbers of the part's pieces
Needs the packages gguf and tokenizers, which tests do not. Written with tokenizers 0.22.2 and llama-cpp-python 0.3.36.
"""
import json
import pathlib
import sys

import gguf
import tokenizers


def main():
    path, lines = sys.argv[1:]
    fields = gguf.GGUFReader(path).fields
    def content(key):
        return fields[f'tokenizer.ggml.{key}'].contents()
    pieces, kinds, merges = content('tokens'), content('token_type'), content('merges')
    number = {piece: token for token, piece in enumerate(pieces)}
    model = tokenizers.models.BPE(number, [tuple(merge.split(' ')) for merge in merges], byte_fallback=True, unk_token='<unk>',
                                  fuse_unk=True)
    whole = tokenizers.Tokenizer(model)
    whole.normalizer = tokenizers.normalizers.Replace(' ', '\u2581')

    texts, tokens = [], []
    published = pathlib.Path(path + '.inp').read_text().split('\n__ggml_vocab_test__\n')
    for text, line in zip(published, pathlib.Path(path + '.out').read_text().splitlines()):
        texts.append(text)
        tokens.append([int(token) for token in line.split()])
    agree = sum(whole.encode(text).ids == ids for text, ids in zip(texts, tokens))
    print(f'{agree} of {len(texts)} published vectors agree with the package tokenizers')
    for line in pathlib.Path(lines).read_text().splitlines()[::5]:
        text = json.loads(line)
        text = text if isinstance(text, str) else text['text']
        if not any(piece in text for piece in ('<bos>', '<eos>', '<|')):
            texts.append(text)
            tokens.append(whole.encode(text).ids)

    escaped = [text.replace(' ', '\u2581') for text in texts]
    joined = '\0'.join(escaped)
    longest = max(map(len, escaped))
    short = {joined[i:i + size] for size in range(1, min(longest, 40) + 1) for i in range(len(joined) - size + 1)}
    kept_merges = [merge for merge in merges if merge.replace(' ', '', 1) in short
                   or len(merge) > 40 and merge.replace(' ', '', 1) in joined]
    used = set(range(8)) | {token for ids in tokens for token in ids}
    used |= {token for token, kind in enumerate(kinds) if kind == 6}
    used |= {number[piece] for merge in kept_merges for piece in (*merge.split(' '), merge.replace(' ', '', 1))}
    used |= {number[character] for character in set(joined) if character in number}
    order = sorted(used)
    place = {token: i for i, token in enumerate(order)}
    out = {'pieces': [pieces[token] for token in order], 'kinds': [kinds[token] for token in order], 'merges': kept_merges,
           'texts': texts, 'tokens': [[place[token] for token in ids] for ids in tokens]}
    rows = [f'"{key}":{json.dumps(value, separators=(",", ":"), ensure_ascii=False)}' for key, value in out.items()]
    (pathlib.Path(__file__).parent / 'vectors.json').write_text('{' + ',\n'.join(rows) + '}\n')
    print(f'{len(order)} pieces, {len(kept_merges)} merges, {len(texts)} texts')


if __name__ == '__main__':
    main()
