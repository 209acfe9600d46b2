#!/usr/bin/env python3
"""What a policy keeps of a text beside its most recent tokens, layer by layer.

what_is_kept.py KVASIR MODEL TEXT --tokens 1500 --kv h2o:budget=512,recent=256 --recent 256 --first 250

For policies that decide for a layer. Punctuation: tokens without a letter or digit. Beside it, of the whole text and of
as many tokens drawn at random.
"""

import argparse
import json
import random
import subprocess


def kvasir(*arguments, **more):
    done = subprocess.run([*arguments, "--json"], stdout=subprocess.PIPE, text=True, **more)
    if done.returncode != 0:
        raise SystemExit(done.returncode)  # it has said why
    return json.loads(done.stdout)


def punctuation(pieces):
    return sum(not any(c.isalnum() for c in piece) for piece in pieces) / max(1, len(pieces))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, default=1500)
    parser.add_argument("--kv", default="h2o:budget=512,recent=256")
    parser.add_argument("--recent", type=int, default=256, help="tokens at the end that are not counted")
    parser.add_argument("--first", type=int, default=250, help="how many tokens count as the beginning")
    options = parser.parse_args()
    if options.recent < 0 or options.tokens <= options.recent:
        parser.error("--tokens must be above --recent")
    try:
        with open(options.text, encoding="utf-8") as file:
            pieces = kvasir(options.kvasir, "tokenize", "-m", options.model, stdin=file)["pieces"][: options.tokens]
    except OSError as error:
        parser.error(str(error))
    kept = kvasir(
        options.kvasir, "inspect", "-m", options.model, "-f", options.text, "--tokens", str(options.tokens),
        "--kv", options.kv,
    )  # fmt: skip
    if "final" not in kept["layers"][0]:
        parser.error(f"{options.kv} decides for each head, not for a layer")
    print(f"text: {punctuation(pieces):.0%} punctuation")
    end = options.tokens - options.recent
    draw = random.Random(1)
    for layer in kept["layers"]:
        ids = [i for i in layer["final"] if i < end]
        at_random = len({pieces[i] for i in draw.sample(range(end), len(ids))})
        print(
            f"layer {layer['layer']}: {len(ids)} older ones, {punctuation([pieces[i] for i in ids]):.0%} punctuation, "
            f"{len({pieces[i] for i in ids})} different (at random {at_random}), "
            f"{sum(i < options.first for i in ids)} of the first {options.first}"
        )


if __name__ == "__main__":
    main()
