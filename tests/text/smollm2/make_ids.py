#!/usr/bin/env python3
"""Writes ids.txt: the token ids of each text of lines.jsonl, as `transformers` makes them of SmolLM2's GGUF file.

    make_ids.py MODEL.gguf > ids.txt
    make_ids.py MODEL.gguf --llama-tokenize FILE      compares ids.txt with what llama.cpp's llama-tokenize gives

Needs transformers (5.2), torch and gguf. No token is added at the beginning, and control tokens are not recognised. The
tokenizer that transformers makes of a GGUF file differs from llama.cpp's in two points, which are mended here:
  - It does not split off each digit, the first step of the pre-tokenizer "smollm" (tokenizer.ggml.pre).
  - It writes <|endoftext|>, which the file names as the unknown token, for a byte that has no token. llama.cpp leaves
    such a byte out. 29 of the texts have one.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent


def read_lines():
    return [json.loads(line) for line in (HERE / "lines.jsonl").read_text().splitlines()]


def of_transformers(model, lines):
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer

    path = pathlib.Path(model)
    tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    backend = tokenizer.backend_tokenizer
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
    backend.model.unk_token = None
    return [tokenizer.encode(line, add_special_tokens=False, split_special_tokens=True) for line in lines]


def of_program(command, lines):
    """Runs `command` once a text, which is in the file that the command's last argument names."""
    ids = []
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "text"
        for line in lines:
            path.write_bytes(line.encode())
            output = subprocess.run([*command, str(path)], check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout
            ids.append([int(word) for word in output.decode().replace("[", " ").replace("]", " ").replace(",", " ").split()])
    return ids


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--llama-tokenize", metavar="FILE")
    arguments = parser.parse_args()
    lines = read_lines()
    if arguments.llama_tokenize:
        command = [arguments.llama_tokenize, "-m", arguments.model, "--ids", "--no-bos", "--no-parse-special", "--no-escape",
                   "--log-disable", "-f"]
    else:
        for ids in of_transformers(arguments.model, lines):
            print(*ids)
        return 0

    expected = [[int(word) for word in row.split()] for row in (HERE / "ids.txt").read_text().splitlines()]
    assert len(expected) == len(lines)
    differing = 0
    for number, (line, want, got) in enumerate(zip(lines, expected, of_program(command, lines)), 1):
        if want != got:
            differing += 1
            print(f"line {number}: {line!r}\n  ids.txt {want}\n  program {got}")
    print(f"{len(lines)} texts, {sum(map(len, expected))} tokens, {differing} texts differ")
    return differing != 0


if __name__ == "__main__":
    sys.exit(main())
