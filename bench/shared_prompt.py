#!/usr/bin/env python3
"""Requests that share a long system prompt, with and without the prefix cache: shared_prompt.py KVASIR MODEL [--requests 64] [--json]

All requests come at once: a system prompt of some 2,000 tokens, a question of their own, and an answer long enough that the
first request still runs when the last prompt has been read. Prints, without and with prefixes: seconds until all have ended,
the median time to the first token, prompt tokens that were computed, the most bytes that requests held and the most that ran
at once, and what `plan` foretells for one request without sharing. Fails where an answer differs.
"""

import argparse
import json
import os
import statistics
import sys
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests", "server"))

from live_server import LiveServer

RULES = ("You answer questions of visitors of a small museum by the sea. You speak slowly and kindly, you never hurry, and you never leave "
         "a question without an answer. When you do not know what happened, you say so, and you name the room where somebody knows more. ")


class Visitor(threading.Thread):
    def __init__(self, server, number, system, answer, bypass):
        super().__init__()
        self.server, self.text, self.first, self.usage = server, "", None, None
        self.body = {"prompt": f"{system}\n\nQuestion {number}: What is in room {number * 7 % 64}?\nAnswer:", "temperature": 0, "max_tokens": answer,
                     "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True}, "kv": {"policy": "full", "bypass": bypass}}

    def run(self):
        began = time.monotonic()
        connection = self.server.connect()
        connection.request("POST", "/v1/completions", json.dumps(self.body))
        for line in connection.getresponse():
            if not line.startswith(b"data: {"):
                continue
            event = json.loads(line[6:])
            if self.first is None and event.get("choices"):
                self.first = time.monotonic() - began
            self.text += "".join(choice["text"] for choice in event.get("choices", []))
            self.usage = event.get("usage") or self.usage
        connection.close()


def together(server, options, system, bypass):
    """Returns the figures of one round and its texts."""
    requests, answer = options.requests, options.answer
    visitors = [Visitor(server, number, system, answer, bypass) for number in range(requests)]
    computed = server.metric("kvasir:prompt_tokens_total") - server.metric("kvasir:prompt_tokens_cached_total")
    began = time.monotonic()
    for visitor in visitors:
        visitor.start()
    held = running = 0
    while any(visitor.is_alive() for visitor in visitors):
        held = max(held, server.metric("kvasir:kv_request_bytes"))
        running = max(running, server.running())
        time.sleep(0.05)
    seconds = time.monotonic() - began
    computed = server.metric("kvasir:prompt_tokens_total") - server.metric("kvasir:prompt_tokens_cached_total") - computed
    tokens = visitors[0].usage["prompt_tokens"]
    status, _, plan = server.ask("POST", "/v1/kv/plan", {"policy": "full", "prompt_tokens": tokens, "max_tokens": answer})
    assert status == 200, plan
    return {"requests": requests, "prefixes": not bypass, "seconds": seconds, "first_token_ms": 1000 * statistics.median(v.first for v in visitors),
            "prompt_tokens": sum(v.usage["prompt_tokens"] for v in visitors), "computed_tokens": int(computed), "tokens": tokens + answer,
            "held_bytes": int(held), "most_running": int(running), "plan": json.loads(plan)}, [visitor.text for visitor in visitors]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--words", type=int, default=1700, help="of the system prompt")
    parser.add_argument("--answer", type=int, default=512, help="tokens of an answer")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    words = RULES.split()
    system = " ".join((words * (options.words // len(words) + 1))[:options.words])
    rows, expected = [], None
    for bypass in (True, False):
        with LiveServer(options.kvasir, options.model, "--kv-memory", "8GiB", "--max-batch", str(options.requests)) as server:
            server.complete(max_tokens=1)
            figures, texts = together(server, options, system, bypass)
            server.end()
        rows.append(figures)
        assert expected in (None, texts), "answers differ"
        expected = texts
    if options.json:
        print(json.dumps(rows))
        return
    for row in rows:
        print(f"{'with' if row['prefixes'] else 'without'} prefixes: {row['seconds']:.1f} s, first token after {row['first_token_ms']:.0f} ms, "
              f"{row['computed_tokens']:,} of {row['prompt_tokens']:,} prompt tokens computed, {row['held_bytes'] / 2**20:.1f} MiB "
              f"held by up to {row['most_running']} at once; plan: {row['plan']}")


if __name__ == "__main__":
    main()
