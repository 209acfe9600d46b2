"""Greedy answers over HTTP are the same to the bit, whatever happens: same_answer_check.py KVASIR MODEL

Each request is answered alone; then in batches of 1 to 16, as streams and whole; as samples of one request; and on so little
memory that requests are preempted, which the server must report under each policy. All that under each of several policies.
"""

import concurrent.futures
import json
import sys
import time

from serve_check import Server, events

POLICIES = ("full", "streaming:sinks=4,window=60", "h2o:budget=64", "snapkv:budget=64,window=16+lethe:start=80,max=128")
PROMPTS = [f"Once upon a time there was {what} who lived in {where}. " * (1 + i % 3) for i, (what, where) in enumerate(
    (what, where) for where in ("a big house", "the forest", "a small town", "the sea") for what in ("a cat", "Lily", "an old man",
                                                                                                    "a dragon"))]

ROUNDS = 8


def request(prompt, policy, **fields):
    return {"prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True, "kv": {"policy": policy, "bypass": True}, **fields}


def answer(server, body):
    """Texts, and how often the request was preempted."""
    status, _, text = server.ask("POST", "/v1/completions", body)
    assert status == 200, text
    if not body.get("stream"):
        got = json.loads(text)
        return [choice["text"] for choice in got["choices"]], got["kv"]["preemptions"]
    texts, preemptions, said = [""], None, events(text)
    assert said[-1] == "[DONE]"
    for chunk in map(json.loads, said[:-1]):
        for choice in chunk["choices"]:
            texts[0] += choice["text"]
        preemptions = chunk.get("kv", {}).get("preemptions", preemptions)
    return texts, preemptions


def together(server, bodies):
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        return list(pool.map(lambda body: answer(server, body), bodies))


def check_policy(server, small, policy):
    alone = [answer(server, request(prompt, policy))[0] for prompt in PROMPTS]
    assert len(set(map(tuple, alone))) >= 10, "the texts differ, so that mixing them up shows"
    for batch in (1, 2, 4, 8, 16):
        for stream in (False, True):
            if stream and batch not in (4, 16):
                continue
            got = together(server, [request(prompt, policy, stream=stream) for prompt in PROMPTS[:batch]])
            assert [texts for texts, _ in got] == alone[:batch], (policy, batch, stream)
    texts, _ = answer(server, request(PROMPTS[5], policy, n=4))
    assert texts == alone[5] * 4, policy
    # Four policies in one batch.
    got = together(server, [request(PROMPTS[i], policy if i % 2 else "full") for i in range(8)])
    assert [got[i][0] for i in range(1, 8, 2)] == alone[1:8:2], policy
    # Whether requests meet in a way that preempts one of them depends on their timing: so this is tried again.
    for _ in range(ROUNDS):
        got = together(small, [request(prompt, policy) for prompt in PROMPTS])
        assert [texts for texts, _ in got] == alone, (policy, "on little memory")
        preempted = sum(preemptions for _, preemptions in got)
        if preempted > 0:
            return preempted
    raise AssertionError(f"{policy}: nothing was preempted in {ROUNDS} rounds")


def main(kvasir, model):
    server = Server(kvasir, model)
    got = server.post("/v1/completions", request(max(PROMPTS, key=len), "full"))[1]
    memory = f"{3 * got['kv']['bytes_peak'] >> 10}KiB"
    small = Server(kvasir, model, "--kv-memory", memory)
    try:
        for policy in POLICIES:
            began = time.time()
            preempted = check_policy(server, small, policy)
            print(f"{policy}: {time.time() - began:.1f} s, preemptions on {memory}: {preempted}", flush=True)
        assert server.end() == 0 and small.end() == 0
    finally:
        server.process.kill()
        small.process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:3])
