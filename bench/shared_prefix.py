"""Time to the first token of a server whose prompts another one has read: shared_prefix.py KVASIR MODEL [WORDS [TEXTS]]

Two servers and a Redis between them (Debian's redis-server), on one machine. The first server reads TEXTS prompts of WORDS words.
Then a second one, that has none of them in memory, is asked for each once, per row: without Redis; with Redis; with Redis behind a
proxy that is slow (a delay for each piece of 64 KiB that it sends, or a bound on its rate); with Redis gone before, and in the
middle. Prints the median and the longest time, and how many prompts came from Redis. Fails where an answer differs.
"""

import os
import statistics
import sys
import tempfile
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "server"))

from live_server import LiveServer
from prefix_disk_check import tier, wait_for
from redis_double import REDIS, Proxy, Redis


def text(number, words):
    return f"Number {number}. " + " ".join(f"word{(i * 7919 + number * 104729) % 997}" for i in range(words))


def ask(server, prompt):
    began = time.time()
    status, answer = server.complete(prompt=prompt, max_tokens=1, ignore_eos=True, kv={"policy": "full"})
    assert status == 200, answer
    return time.time() - began, answer


def row(name, kvasir, model, prompts, expected, *options, during=None):
    with LiveServer(kvasir, model, *options) as server:
        ask(server, "Hello")  # its first request makes the cache
        for warm in range(3):  # and the rates of passes are measured
            ask(server, text(1000 + warm, 300))
        times, hits = [], 0
        for number, prompt in enumerate(prompts):
            if during is not None and number == len(prompts) // 2:
                during()
            took, answer = ask(server, prompt)
            times.append(took)
            hits += answer["kv"]["cached_from"] == "redis"
            assert expected is None or answer["choices"][0]["text"] == expected[number], (name, number)
        print(f"| {name} | {1000 * statistics.median(times):.0f} | {1000 * max(times):.0f} | {hits} of {len(prompts)} |", flush=True)
        texts = [ask(server, prompt)[1]["choices"][0]["text"] for prompt in prompts] if expected is None else expected
        server.end()
        return texts


def main(kvasir, model, words="700", texts="12"):
    assert REDIS is not None, "needs redis-server"
    prompts = [text(number, int(words)) for number in range(int(texts))]
    with tempfile.TemporaryDirectory() as folder, Redis(folder) as redis:
        with LiveServer(kvasir, model, "--redis", f"127.0.0.1:{redis.port}") as first:
            tokens = 0
            for prompt in prompts:
                tokens += ask(first, prompt)[1]["usage"]["prompt_tokens"]
            wait_for(lambda: tier(first, "stores_total", "redis") >= len(prompts) * (tokens // len(prompts) // 256), "not written")
            size = tier(first, "store_bytes_total", "redis") / tier(first, "stores_total", "redis")
            first.end()
        print(f"{tokens // len(prompts)} tokens a prompt, {size / 256 / 1024:.1f} KiB a token\n")
        print("| second server | median, ms | longest, ms | from Redis |\n|---|---|---|---|")
        expected = row("without Redis", kvasir, model, prompts, None)
        for name, delay, rate in (("Redis on the same machine", 0, None), ("1 ms a piece of 64 KiB", 0.001, None),
                                  ("50 ms a piece", 0.05, None), ("10 MB/s", 0, 10e6), ("1 MB/s", 0, 1e6), ("5 s a piece", 5, None)):
            proxy = Proxy(redis.port, delay, rate)
            row(name, kvasir, model, prompts, expected, "--redis", f"127.0.0.1:{proxy.port}")
            proxy.end()
        row("dies in the middle", kvasir, model, prompts, expected, "--redis", f"127.0.0.1:{redis.port}", during=redis.end)
        row("is gone", kvasir, model, prompts, expected, "--redis", f"127.0.0.1:{redis.port}")


if __name__ == "__main__":
    main(*sys.argv[1:])
