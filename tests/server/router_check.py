"""Two replicas behind a router, as routers of the kind of llm-d's endpoint picker and vLLM's production-stack see them:
router_check.py KVASIR MODEL

The router reads gauges, renders a prompt to tokens, asks its index of KV events who has seen them, and sends the
request there. Each step is made of the messages that these routers send.
"""

import json
import re
import sys
import time

from kv_index import Replica, Subscriber, settle

def samples_of(text):
    """Parses what /metrics says, of Prometheus' text format: {name: {labels: value}}."""
    found = {}
    for line in text.decode().splitlines():
        if not line or line.startswith("#"):
            continue
        name, labels, value = re.fullmatch(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (\S+)(?: \d+)?", line).groups()
        found.setdefault(name, {})[labels or ""] = float(value)
    return found


def check_models(replica):
    status, text = replica.ask("GET", "/v1/models")
    models = json.loads(text)
    assert status == 200 and models["object"] == "list" and [each["id"] for each in models["data"]] == ["m"], models


def check_gauges(replica):
    status, text = replica.ask("GET", "/metrics")
    assert status == 200, (status, text)
    samples = samples_of(text)
    for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc"):
        assert len(samples[name]) == 1 and 'model_name="m"' in next(iter(samples[name])), samples[name]
    assert 0 <= next(iter(samples["vllm:kv_cache_usage_perc"].values())) <= 1
    labels = next(iter(samples["vllm:cache_config_info"]))
    assert re.search(r'block_size="\d+"', labels) and re.search(r'num_gpu_blocks="\d+"', labels), labels
    # production-stack reads the older names.
    for name in ("vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_hits_total",
                 "vllm:gpu_prefix_cache_queries_total"):
        assert name in samples, name


def check_tokenize(replica):
    status, text = replica.ask("POST", "/tokenize", {"model": "m", "prompt": "Once upon a time"})
    assert status == 200 and all(isinstance(token, int) for token in json.loads(text)["tokens"]), text


def render_text(replica, prompt):
    status, text = replica.ask("POST", "/v1/completions/render", {"model": "m", "prompt": prompt})
    rendered = json.loads(text)
    assert status == 200 and isinstance(rendered, list) and len(rendered) == 1, rendered
    return rendered[0]["token_ids"]


def render_chat(replica, messages):
    status, text = replica.ask("POST", "/v1/chat/completions/render", {"model": "m", "messages": messages})
    assert status == 200, (status, text)
    return json.loads(text)["token_ids"]


def pick(replicas, subscribers, tokens):
    """The replica that has most of a prompt, and how much."""
    settled = [(subscriber.follow(0.2).found(tokens), number) for number, subscriber in enumerate(subscribers)]
    best, number = max(settled)
    return replicas[number], best


def check_texts(replicas, subscribers):
    """Stories told by two replicas are continued by the replica that told them, with the tokens found that the index
    promised."""
    stories = ["Once upon a time there was a fox who lived at the edge of a dark forest. " * 4,
               "The old man went down to the sea in the morning, and the sea was calm. " * 4]
    for replica, story in zip(replicas, stories):
        replica.complete(story)
        settle(replica, *subscribers)
    for number in (1, 0):
        prompt = stories[number] + "Then it rained."
        tokens = render_text(replicas[1 - number], prompt)
        replica, promised = pick(replicas, subscribers, tokens)
        assert replica is replicas[number] and promised > 0, promised
        answer = replica.complete(prompt)
        assert answer["kv"]["cached"] == promised, (answer, promised)
        assert answer["usage"]["prompt_tokens"] == len(tokens), (answer, len(tokens))
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] == promised, (answer, promised)


def check_chat(replicas, subscribers):
    """A conversation comes back to the replica that led it."""
    messages = [{"role": "system", "content": "You are a storyteller. " * 8},
                {"role": "user", "content": "Who are you?"}]
    for turn in range(3):
        tokens = render_chat(replicas[0], messages)
        replica, promised = pick(replicas, subscribers, tokens)
        if turn > 0:
            assert replica is before and promised > 0, (turn, promised)
        status, text = replica.ask("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 20,
                                                                   "temperature": 0})
        answer = json.loads(text)
        assert status == 200 and answer["kv"]["cached"] == promised, (turn, answer, promised)
        assert answer["usage"]["prompt_tokens"] == len(tokens), (answer, len(tokens))
        messages += [answer["choices"][0]["message"], {"role": "user", "content": f"Tell me more of it, part {turn}."}]
        messages[-2] = {"role": "assistant", "content": messages[-2]["content"]}
        settle(replica, *subscribers)
        before = replica


def main(kvasir, model):
    replicas = []
    try:
        for _ in range(2):
            replicas.append(Replica(kvasir, model, "--vllm-metrics"))
        subscribers = [Subscriber(replica) for replica in replicas]
        for check in (check_models, check_gauges, check_tokenize):
            check(replicas[0])
            print(check.__name__, flush=True)
        for check in (check_texts, check_chat):
            began = time.time()
            check(replicas, subscribers)
            print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)
        for replica in replicas:
            replica.end()
    finally:
        for replica in replicas:
            replica.kill()


if __name__ == "__main__":
    main(*sys.argv[1:3])
