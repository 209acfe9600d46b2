"""Embeddings by each path, against a real server: embeddings_check.py KVASIR MODEL"""

import base64
import json
import math
import struct
import sys

from live_server import LiveServer

TEXTS = ["The king said to the knight", "a ship on the sea", "O"]


def post(server, path, body):
    status, fields, text = server.ask("POST", path, body)
    return status, fields, json.loads(text)


def embed(server, text, **more):
    status, _, got = post(server, "/v1/embeddings", {"input": text, **more})
    assert status == 200, got
    assert [each["index"] for each in got["data"]] == list(range(len(got["data"]))), got
    return [each["embedding"] for each in got["data"]]


def length(vector):
    return math.sqrt(sum(x * x for x in vector))


def near(a, b, tolerance=1e-6):
    return len(a) == len(b) and all(abs(x - y) < tolerance for x, y in zip(a, b))


def check_forms(server):
    one = [embed(server, text)[0] for text in TEXTS]
    assert all(abs(length(each) - 1) < 1e-5 for each in one) and len(one[0]) > 8
    assert not near(one[0], one[1], 0.05), "different texts have different embeddings"
    assert embed(server, TEXTS) == one, "several texts: the same bits as each alone"
    tokens = post(server, "/tokenize", {"content": TEXTS[0], "add_special": True})[2]["tokens"]
    assert embed(server, tokens) == [one[0]] and embed(server, [tokens, tokens]) == [one[0]] * 2
    encoded = embed(server, TEXTS, encoding_format="base64")
    decoded = [struct.unpack(f"<{len(one[0])}f", base64.b64decode(each)) for each in encoded]
    assert all(near(a, b, 1e-7) for a, b in zip(decoded, one))
    short = embed(server, TEXTS[0], dimensions=5)[0]
    scale = length(one[0][:5])
    assert near(short, [x / scale for x in one[0][:5]]), (short, one[0][:5])
    ollama = post(server, "/api/embed", {"model": "m:latest", "input": TEXTS})[2]
    assert ollama["embeddings"] == one and ollama["prompt_eval_count"] > 3, ollama
    assert post(server, "/api/embeddings", {"model": "m", "prompt": TEXTS[1]})[2]["embedding"] == one[1]
    llama = post(server, "/embedding", {"content": TEXTS[:2]})[2]
    assert [each["embedding"] for each in llama] == [[one[0]], [one[1]]], llama
    raw = post(server, "/embeddings", {"content": TEXTS[2], "embd_normalize": -1})[2][0]["embedding"][0]
    assert near([x / length(raw) for x in raw], one[2]) and abs(length(raw) - 1) > 1e-3


def check_usage(server):
    status, fields, got = post(server, "/v1/embeddings", {"input": TEXTS, "model": "m", "user": "me"})
    assert status == 200 and fields["X-Kvasir-Ignored"] == "user" and got["model"] == "m" and got["object"] == "list", got
    counts = [post(server, "/tokenize", {"prompt": text})[2]["count"] for text in TEXTS]
    assert got["usage"] == {"prompt_tokens": sum(counts), "total_tokens": sum(counts)}, got["usage"]
    assert [each["kv"]["seen"] for each in got["data"]] == counts, got["data"]
    # Under a policy with a bound a text longer than it is read in bounded memory, and the answer says so.
    long = "The king said to the knight of the sea. " * 100
    full = post(server, "/v1/embeddings", {"input": long})[2]["data"][0]
    bounded = post(server, "/v1/embeddings", {"input": long, "kv": {"policy": "streaming:cap=128"}})[2]["data"][0]
    assert full["kv"]["kept"] == full["kv"]["seen"] > 900 and bounded["kv"]["kept"] <= 128 < bounded["kv"]["seen"], bounded["kv"]
    assert bounded["kv"]["bytes_peak"] < full["kv"]["bytes_peak"]


def check_lengths(server):
    """Ollama's paths cut a text that is longer than the context; the others refuse it."""
    long = "word " * 4000
    status, _, got = post(server, "/v1/embeddings", {"input": long})
    assert status == 400 and got["error"]["code"] == "context_length_exceeded", got
    status, _, got = post(server, "/v1/embeddings", {"input": ["x", long]})
    assert status == 400 and "prompt 2 of 2" in got["error"]["message"], got
    assert post(server, "/api/embed", {"input": long})[2]["prompt_eval_count"] > 2000
    status, _, got = post(server, "/api/embed", {"input": long, "truncate": False})
    assert status == 400 and "too long" in got["error"], got


def check_refusals(server):
    for change, word in (({"input": ""}, "input"), ({"input": []}, "input"), ({"input": None}, "input"), ({"input": 5}, "input"),
                         ({"input": ["x", ""]}, "input"), ({"input": ["x"] * 2049}, "2048"), ({"input": [-1]}, "vocabulary"),
                         ({"input": [10**9]}, "vocabulary"), ({"dimensions": 0}, "dimensions"), ({"dimensions": 10**6}, "dimensions"),
                         ({"encoding_format": "int8"}, "encoding_format"), ({"kv": {"pin": True}}, "pin"), ({"kv": {"thoughts": "drop"}}, "kv.thoughts"),
                         ({"kv": {"policy": "x"}}, "policy"), ({"truncate_prompt_tokens": 5}, "truncate_prompt_tokens")):
        status, _, got = post(server, "/v1/embeddings", {"input": "x", **change})
        assert status == 400 and word in got["error"]["message"] and len(got["error"]["message"].splitlines()) == 1, (change, status, got)
    status, _, got = post(server, "/v1/embeddings", {"input": "x", "model": "other"})
    assert status == 404, got
    assert post(server, "/api/embed", {"input": "x", "keep_alive": 0})[0] == 400 and post(server, "/api/embed", {"input": "x", "keep_alive": "5m"})[0] == 200
    status, _, got = post(server, "/embedding", {"content": "x", "embd_normalize": 1})
    assert status == 400 and "embd_normalize" in got["error"]["message"], got


def main():
    kvasir, model = sys.argv[1:3]
    with LiveServer(kvasir, model, "--pooling", "mean") as server:
        for check in (check_forms, check_usage, check_lengths, check_refusals):
            check(server)
            print(f"{check.__name__}: ok", flush=True)
        many = [f"{TEXTS[i % 3]} {i}" for i in range(2048)]
        got = embed(server, many, dimensions=8)
        assert got[::100] == [embed(server, text, dimensions=8)[0] for text in many[::100]]
        means = embed(server, TEXTS)
    with LiveServer(kvasir, model, "--pooling", "last", "--queue", "4") as server:
        last = embed(server, TEXTS * 10)
        assert last[:3] * 10 == last and not near(last[0], means[0], 0.01), "more texts than the queue has places"
    with LiveServer(kvasir, model) as server:
        status, _, got = post(server, "/v1/embeddings", {"input": "x"})
        assert status == 400 and "--pooling" in got["error"]["message"] and got["error"]["param"] == "model", got


main()
