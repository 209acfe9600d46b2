#!/usr/bin/env python3
"""Runs a retention policy that is written in Python on a recording, without a model.

    kvasir record -m MODEL -f book.txt --tokens 600 --prefill 400 --with-keys -o recording.npy
    python_policy.py recording.npy --prefill 400 --budget 128

Write your policy in `score`: of each KV head, the tokens of highest score stay. It is pruned when the prompt of --prefill
tokens ends, and whenever --every tokens behind it are above the budget. For each layer the program prints what share of the
attention falls on tokens that are held: the recall of `kvasir replay`, which runs Kvasir's own policies on the same file.
Needs NumPy.
"""
import argparse
import json

import numpy


class Held:
    """What a KV head holds: arrays of n tokens. D is the size of a head, H the query heads that share the KV head."""

    def __init__(self, recording, layer, head, tokens, seen):
        group = recording.heads // recording.kv_heads
        own = slice(head * group, (head + 1) * group)
        self.tokens = numpy.array(tokens)  # [n] places in the text, ascending
        self.keys = recording.keys[layer, head, tokens]  # [n, D], rotated by their positions
        self.values = recording.values[layer, head, tokens]  # [n, D]
        self.rotations = recording.rotations[layer, head, tokens, 0]  # [n] those positions
        self.queries = recording.queries[layer, own, :seen]  # [H, seen, D] of all tokens so far, before rotation
        self.attention = recording.attention[layer, own, :seen][:, :, tokens]  # [H, seen, n] softmax weights


def score(held):
    """KeyDiff (arXiv 2504.15364): keys stay that point away from the mean direction."""
    directions = held.keys / numpy.linalg.norm(held.keys, axis=1, keepdims=True)
    mean = directions.mean(axis=0)
    return -directions @ (mean / numpy.linalg.norm(mean))


class Recording:
    def __init__(self, path):
        with open(path, "rb") as file:
            self.attention = numpy.load(file)  # [layers, heads, T, T]
            try:
                self.keys, self.values, self.rotations, self.queries = (numpy.load(file) for _ in range(4))
            except (EOFError, ValueError):
                raise SystemExit(f"{path} has attention alone; record the text again with --with-keys") from None
        self.layers, self.heads, self.tokens = self.attention.shape[:3]
        self.kv_heads = self.keys.shape[1]


def keep_best(scores, budget):
    """Returns the places of the `budget` highest scores, ascending; of equal ones the younger."""
    order = numpy.lexsort((numpy.arange(len(scores)), scores))
    return sorted(order[len(scores) - budget:])


def run(recording, layer, head, options):
    """Returns the tokens held at the end, and the share of attention that fell on tokens that were held."""
    group = recording.heads // recording.kv_heads
    attention = recording.attention[layer, head * group:(head + 1) * group].astype(float)
    held, total = [], 0.0
    for row in range(recording.tokens):
        held.append(row)
        total += attention[:, row, held].sum()
        prompt = row < options.prefill
        due = row + 1 == options.prefill and len(held) > options.budget if prompt else len(held) - options.budget >= options.every
        if due:
            scores = score(Held(recording, layer, head, held, row + 1))
            held = [held[i] for i in keep_best(scores, options.budget)]
    return held, total / (group * recording.tokens)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recording")
    parser.add_argument("--prefill", type=int, default=0, help="tokens of the prompt")
    parser.add_argument("--budget", type=int, default=128)
    parser.add_argument("--every", type=int, default=64)
    parser.add_argument("--json", action="store_true", help="the fields of kvasir replay --json")
    options = parser.parse_args()
    if options.budget < 1 or options.every < 1 or options.prefill < 0:
        parser.error("--budget and --every must be at least 1, --prefill at least 0")
    try:
        recording = Recording(options.recording)
    except OSError as error:
        parser.error(str(error))
    layers = []
    for layer in range(recording.layers):
        heads = [run(recording, layer, head, options) for head in range(recording.kv_heads)]
        recall = sum(share for _, share in heads) / len(heads)
        layers.append({"layer": layer, "recall": recall,
                       "heads": [{"final": [int(token) for token in held], "recall": share} for held, share in heads]})
        if not options.json:
            print(f"layer {layer}: recall {recall:.4f}")
    if options.json:
        print(json.dumps({"layers": layers}))


if __name__ == "__main__":
    main()
