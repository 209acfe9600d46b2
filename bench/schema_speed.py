"""Tokens/s under a JSON schema beside those without: schema_speed.py KVASIR [MODEL] [--batch 1 16] [--tokens 128] [--repeats 7]

Starts `kvasir serve`. For each schema and number of requests at once, rounds with and without the schema take turns, so that
whatever else the machine does meets both alike; the first round of each, in which the grammar is compiled, is not counted. All
requests of a row have the same prompt, and generate --tokens tokens each: the schemas' texts are longer than that, and without a
schema the model's own end is ignored. Tokens/s are of whole requests, seen from the client. Prints medians with the least and the
most, and the ratio: the median over pairs of neighbouring rounds. With --least, exits with 1 if a ratio is below. MODEL:
SmolLM2-135M-Instruct where it has been downloaded; without it the program ends with 77.
"""

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import time

TESTS = pathlib.Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / folder) for folder in ("server", "support")]

from live_server import LiveServer  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402

MANY = 150  # items, more than an answer comes to
SCHEMAS = {
    # Structure: much of the text is forced.
    "records": {"type": "array", "minItems": MANY, "items": {
        "type": "object", "required": ["id", "kind", "price", "date", "tags", "place"], "properties": {
            "id": {"type": "integer", "minimum": 0}, "kind": {"enum": ["small", "medium", "large"]},
            "price": {"type": "number", "minimum": 0, "maximum": 1000, "multipleOf": 0.01}, "date": {"type": "string", "format": "date"},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 12}, "maxItems": 4},
            "place": {"type": "object", "properties": {"city": {"type": "string"}, "known": {"type": "boolean"}},
                      "required": ["city", "known"]}}}},
    # Free text in strings: almost any token may follow.
    "texts": {"type": "array", "minItems": MANY, "items": {"type": "string", "minLength": 20}},
    # Any JSON.
    "any": {"type": "array", "minItems": MANY},
}
PROMPT = "Write a long list in JSON about the shops of a small town, their goods and their owners."


def ask(server, options, schema, number):
    body = {"messages": [{"role": "user", "content": PROMPT}], "max_tokens": options.tokens, "temperature": 0.8, "seed": number}
    body.update({"structured_outputs": {"json": schema}} if schema else {"ignore_eos": True})
    status, _, text = server.ask("POST", "/v1/chat/completions", body)
    if status != 200:
        sys.exit(f"status {status}: {text[:500]}")
    tokens = json.loads(text)["usage"]["completion_tokens"]
    if tokens != options.tokens:
        sys.exit(f"an answer has {tokens} tokens, not {options.tokens}: its text came to an end")
    return tokens


def tokens_per_second(server, options, workers, batch, schema, turn):
    began = time.monotonic()
    tokens = sum(workers.map(lambda i: ask(server, options, schema, turn * batch + i), range(batch)))
    return tokens / (time.monotonic() - began)


def spread(values, digits):
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})"


def measure(server, options, name, batch):
    """Prints a row; returns its ratio."""
    plain, limited, ratios = [], [], []
    with concurrent.futures.ThreadPoolExecutor(batch) as workers:
        for turn in range(options.repeats + 1):
            ways = [(limited, SCHEMAS[name]), (plain, None)]
            for rates, schema in ways if turn % 2 else ways[::-1]:
                rates.append(tokens_per_second(server, options, workers, batch, schema, turn))
    plain, limited = plain[1:], limited[1:]
    ratios = [one / other for one, other in zip(limited, plain)]
    print(f"| {name} | {batch} | {spread(plain, 1)} | {spread(limited, 1)} | {spread(ratios, 3)} |", flush=True)
    return statistics.median(ratios)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16], help="requests at once")
    parser.add_argument("--schemas", nargs="+", choices=SCHEMAS, default=list(SCHEMAS))
    parser.add_argument("--tokens", type=int, default=128, help="of each request")
    parser.add_argument("--repeats", type=int, default=7, help="counted rounds of each kind")
    parser.add_argument("--least", type=float, default=0, help="the least ratio that is good enough")
    options = parser.parse_args()
    model = options.model or str(real_model_or_skip())
    with LiveServer(options.kvasir, model, "--max-batch", str(max(options.batch))) as server:
        print("| schema | at once | without, tokens/s | with, tokens/s | ratio |\n|---|---|---|---|---|")
        ratios = [measure(server, options, name, batch) for name in options.schemas for batch in options.batch]
    low = [ratio for ratio in ratios if ratio < options.least]
    sys.exit(f"{len(low)} ratios are below {options.least}: the least is {min(low):.3f}" if low else 0)


if __name__ == "__main__":
    main()
