"""Greedy answers over HTTP are the same to the bit, whatever happens: same_answer_check.py KVASIR MODEL

Each request is answered alone; then in batches of 1 to 16, as streams and whole; as samples of one request; and on so little
memory that requests are preempted, which the server must report under each policy. All that under each of several policies.
"""

import concurrent.futures
import http.client
import json
import re
import sys
import time

from serve_check import Server, events

COMPLETIONS = "/v1/completions"
POLICIES = ("full", "streaming:sinks=4,window=60", "h2o:budget=64", "snapkv:budget=64,window=16+lethe:start=80,max=128")
PROMPTS = [f"Once upon a time there was {what} who lived in {where}. " * (1 + i % 3) for i, (what, where) in enumerate(
    (what, where) for where in ("a big house", "the forest", "a small town", "the sea") for what in ("a cat", "Lily", "an old man",
                                                                                                    "a dragon"))]

ROUNDS = 8


def request(prompt, policy, **fields):
    return {"prompt": prompt, "max_tokens": 64, "temperature": 0, "ignore_eos": True, "kv": {"policy": policy, "bypass": True}, **fields}


def answer(server, body):
    """Texts, and how often the request was preempted."""
    status, _, text = server.ask("POST", COMPLETIONS, body)
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


def sample(server, name):
    text = server.ask("GET", "/metrics")[2]
    text = text.decode() if isinstance(text, bytes) else text
    return float(re.search(rf"^kvasir:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1])


def wait_for_sample(server, name, least):
    for _ in range(6000):
        if sample(server, name) >= least:
            return
        time.sleep(0.02)
    raise AssertionError(f"{name} stays below {least}")


def crowd(server, bodies):
    """together(), on little memory: all begin at the same moment, when one that held most of the memory leaves.

    So they meet, and preempt each other, on a machine that would otherwise have answered the first before the last has come."""
    budget = sample(server, "kv_budget_bytes")
    for cap in range(2000, 0, -20):
        body = {"prompt": "x", "max_tokens": 10**9, "ignore_eos": True, "stream": True,
                "kv": {"policy": f"streaming:cap={cap}", "bypass": True}}
        status, _, text = server.ask("POST", "/v1/kv/plan", {name: body[name] for name in ("prompt", "max_tokens", "kv")})
        if status == 200 and json.loads(text)["kv_bytes"] < 0.85 * budget:
            break
    holder = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    holder.request("POST", COMPLETIONS, json.dumps(body))
    stream = holder.getresponse()
    wait_for_sample(server, "kv_request_bytes", 0.7 * budget)
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        answers = [pool.submit(answer, server, body) for body in bodies]
        wait_for_sample(server, "num_requests_waiting", len(bodies))
        stream.close()
        holder.close()
        return [each.result() for each in answers]


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
    for _ in range(ROUNDS):
        got = crowd(small, [request(prompt, policy) for prompt in PROMPTS])
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
