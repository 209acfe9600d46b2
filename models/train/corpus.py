"""Tokenizer and token files from a folder of books: corpus.py BOOKS OUT

BOOKS holds text files and MANIFEST.tsv with the columns file, bytes and duplicate_of. Writes kv4k.model (SentencePiece
BPE of 4,096 pieces with byte fallback, digits one by one), train.u16 and val.u16 (little-endian ids, <s> before each
book), and split.txt, which names the books that were kept out of the training.
"""

import argparse
import csv
import pathlib
import random
import re

import numpy as np
import sentencepiece

TOKENIZER_BOOKS, TOKENIZER_BYTES = 200, 100_000  # as many, and so much of each, to learn the pieces from
MEDIUM = range(300_000, 900_000)  # bytes of books that may be held out
EVALUATION_BOOKS, RESERVED_BOOKS, VALIDATION_BOOKS, TRAINING_BOOKS = 10, 10, 4, 330
SIMPLER = str.maketrans({"\u2019": "'", "\u2018": "'", "\u201c": '"', "\u201d": '"', "\u2014": "--", "\u2013": "-"})


def read_book(path):
    text = path.read_text(encoding="utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")
    text = re.sub(r"[ \t]+\n", "\n", text)
    return re.sub(r"\n{3,}", "\n\n", text).translate(SIMPLER).strip() + "\n"


def split(books, out):
    with open(books / "MANIFEST.tsv", encoding="utf-8") as manifest:
        rows = [row for row in csv.DictReader(manifest, delimiter="\t") if not row["duplicate_of"]]
    rows.sort(key=lambda row: row["file"])
    random.shuffle(rows)
    medium = iter([row["file"] for row in rows if int(row["bytes"]) in MEDIUM])
    parts = {
        name: [next(medium) for _ in range(count)]
        for name, count in (("evaluation", EVALUATION_BOOKS), ("reserved", RESERVED_BOOKS), ("val", VALIDATION_BOOKS))
    }
    out_of_training = {file for files in parts.values() for file in files}
    (out / "split.txt").write_text("".join(f"{name} {file}\n" for name, files in parts.items() for file in files))
    train = [row["file"] for row in rows if row["file"] not in out_of_training]
    return train, parts["val"]


def train_tokenizer(books, files, out):
    sample = out / "tokenizer.txt"
    with open(sample, "w", encoding="utf-8") as stream:
        for file in files[:TOKENIZER_BOOKS]:
            text = read_book(books / file)
            begin = random.randrange(0, max(1, len(text) - TOKENIZER_BYTES))
            stream.write(text[begin : begin + TOKENIZER_BYTES] + "\n")
    sentencepiece.SentencePieceTrainer.train(
        input=str(sample), model_prefix=str(out / "kv4k"), vocab_size=4096, model_type="bpe", byte_fallback=True,
        split_digits=True, normalization_rule_name="identity", remove_extra_whitespaces=False, add_dummy_prefix=True,
        character_coverage=0.9995, max_sentence_length=20000, num_threads=1, unk_id=0, bos_id=1, eos_id=2, pad_id=-1,
        user_defined_symbols=["<|user|>", "<|assistant|>", "<|end|>"],
    )  # fmt: skip
    return sentencepiece.SentencePieceProcessor(model_file=str(out / "kv4k.model"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("books", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path)
    options = parser.parse_args()
    random.seed(1)
    options.out.mkdir(parents=True, exist_ok=True)
    train, held_out = split(options.books, options.out)
    tokenizer = train_tokenizer(options.books, train, options.out)
    for name, files in (("train", train[:TRAINING_BOOKS]), ("val", held_out)):
        ids = [np.array([tokenizer.bos_id()] + tokenizer.encode(read_book(options.books / f)), "<u2") for f in files]
        np.concatenate(ids).tofile(options.out / f"{name}.u16")
        print(f"{name}: {len(files)} books, {sum(map(len, ids)):,} tokens")


if __name__ == "__main__":
    main()
