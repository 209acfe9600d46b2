#!/usr/bin/env python3
"""Writes how the Python package tokenizers, which runs published tokenizer.json files, cuts texts into words.

make_splits.py TEXTS INP

TEXTS: tests/text/smollm2/lines.jsonl. INP: the published texts of a vocabulary, such as llama.cpp's
models/ggml-vocab-llama-bpe.gguf.inp. Writes splits.json beside this file: `texts`, and for each name of
src/text/pre_tokenizers.h below `splits`: for each text the bytes of each piece. The expressions are those of the
published tokenizer.json files, as they stand there. Written with tokenizers 0.22.2.
"""
import json
import pathlib
import sys

from tokenizers import Regex
from tokenizers.pre_tokenizers import ByteLevel, Digits, Sequence, Split

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LOWER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
UPPER = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
LLAMA3 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN2 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + TAIL
QWEN35 = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|" + TAIL
GPT4O = f"{LOWER}{CONTRACTIONS}?|{UPPER}{CONTRACTIONS}?|" + r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
TEKKEN = f"{LOWER}|{UPPER}|" + r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|" + TAIL
SEED = CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|" + TAIL
HAN_AND_KANA = "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"
ASIAN = "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"
DEEPSEEK = (r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"""
            + TAIL)


def cut(*expressions):
    return Sequence([Split(Regex(expression), 'isolated') for expression in expressions])


PUBLISHED = {
    'gpt-2': ByteLevel(add_prefix_space=False, use_regex=True),
    'starcoder': Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False, use_regex=True)]),
    'llama-bpe': cut(LLAMA3),
    'qwen2': cut(QWEN2),
    'qwen35': cut(QWEN35),
    'gpt-4o': cut(GPT4O),
    'tekken': cut(TEKKEN),
    'seed-coder': cut(SEED),
    'deepseek-v3': cut(r'\p{N}{1,3}', HAN_AND_KANA, DEEPSEEK),
    'deepseek-coder': Sequence([*[Split(Regex(expression), 'isolated') for expression in (
        r'[\r\n]', r'\s?\p{L}+', r'\s?\p{P}+', ASIAN)], Digits(individual_digits=True)]),
}
# The same rows of the table under other names of published files.
SAME = {
    'llama-bpe': ['llama3', 'lfm2', 'dbrx', 'glm4', 'chatglm-bpe'],
    'qwen2': ['hunyuan'],
    'starcoder': ['refact', 'command-r', 'smollm', 'exaone'],
    'gpt-2': ['olmo', 'granite-docling'],
    'deepseek-v3': ['hunyuan-dense'],
}


def main():
    lines, published = sys.argv[1:]
    texts = [json.loads(line) for line in pathlib.Path(lines).read_text().splitlines()[::8]]
    texts += pathlib.Path(published).read_text().split('\n__ggml_vocab_test__\n')
    texts += ["It'S y'ALL we'Re I'd DON'T", 'HelloWorld helloWORLD \u00c9t\u00e9\u00c9t\u00e9 \u01c5a ne\u0301e',
              '12345 1\u00bd\u0663\u0664 a1b22c333', ' \u3000\u00a0\t x  \r\n\r\n  y \n', 'a/b//\n c.d;;\r\n\u2028 e',
              '\u4f60\u597dabc\u30ab\u30bf\uac00']
    # Characters of Unicode 15: a PCRE2 that does not know them to be symbols cuts them otherwise by deepseek-v3.
    texts = [text for text in texts if not set(text) & set('\U0001fabf\U0001fae8')]
    splits = {}
    for name, pre_tokenizer in PUBLISHED.items():
        splits[name] = []
        for text in texts:
            ranges = [place for _, place in pre_tokenizer.pre_tokenize_str(text)] if text else []
            assert [begin for begin, _ in ranges] == [0] * bool(text) + [end for _, end in ranges[:-1]], (name, text)
            splits[name].append([len(text[begin:end].encode()) for begin, end in ranges])
    out = {'same': SAME, 'texts': texts, 'splits': splits}
    rows = [f'"{key}":{json.dumps(value, separators=(",", ":"))}' for key, value in out.items()]
    (pathlib.Path(__file__).parent / 'splits.json').write_text('{' + ',\n'.join(rows) + '}\n')
    print(f'{len(texts)} texts, {len(splits)} pre-tokenizers')


if __name__ == '__main__':
    main()
