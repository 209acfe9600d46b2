#!/usr/bin/env python3
"""How much of a chat of ten turns is reused, by policy: prefix_hits.py KVASIR MODEL [--turns N]

Starts `kvasir serve`, holds one chat under each policy, and prints, for each, the prompt tokens of all turns, how many of
them came from exact pages and from snapshots, and the seconds that it took beside those of the same chat without reuse. Answers with and without reuse must be equal; the program fails if they are not.
"""

import argparse
import http.client
import json
import re
import subprocess
import time

POLICIES = ["full", "streaming:sinks=4,window=508", "window:size=512", "h2o:budget=512,recent=128",
            "tova:budget=512", "snapkv:budget=256", "pyramidkv:budget=256", "cake:budget=256", "lethe:start=256",
            "cascade:size=512,n=4,sinks=4", "snapkv:budget=256+lethe:start=256"]
QUESTIONS = ["Tell me about a fox and an old well.", "What did the fox want?", "Who else came to the well?",
             "Describe the night in detail, with the weather, the sounds and the light.", "Was the fox afraid?",
             "What did they find at the bottom?", "Who told the story first?", "Say it again in other words.",
             "What should one learn from it?", "How does it end?"]
SYSTEM = ("You are a storyteller in a small village by the sea. You speak slowly and kindly, you never hurry, and you "
          "never leave a question without an answer. When you do not know what happened, you say so. ") * 12


def post(port, body):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    connection.request("POST", "/v1/chat/completions", json.dumps(body))
    answer = json.loads(connection.getresponse().read())
    if "error" in answer:
        raise SystemExit(answer["error"]["message"])
    return answer


def chat(port, policy, turns, bypass):
    messages = [{"role": "system", "content": SYSTEM}]
    rows, texts = [], []
    for question in QUESTIONS[:turns]:
        messages.append({"role": "user", "content": question})
        body = {"messages": messages, "max_tokens": 60, "temperature": 0, "repetition_penalty": 1.1,
                "kv": {"policy": policy, "bypass": bypass}}
        began = time.monotonic()
        answer = post(port, body)
        rows.append((answer["usage"]["prompt_tokens"], answer["kv"], time.monotonic() - began))
        texts.append(answer["choices"][0]["message"]["content"])
        messages.append({"role": "assistant", "content": texts[-1]})
    return rows, texts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("--turns", type=int, default=10)
    arguments = parser.parse_args()
    server = subprocess.Popen([arguments.kvasir, "serve", "-m", arguments.model, "--port", "0", "--kv-memory", "1GiB"],
                              stderr=subprocess.PIPE, text=True)
    try:
        port = next(int(found[1]) for line in server.stderr if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line)))
        print("| policy | prompt tokens | from exact pages | from snapshots | reused | seconds, all turns | without reuse |")
        print("|---|---|---|---|---|---|---|")
        for policy in POLICIES:
            cold, expected = chat(port, policy, arguments.turns, True)
            warm, texts = chat(port, policy, arguments.turns, False)
            if texts != expected:
                raise SystemExit(f"{policy}: the answers differ")
            prompt = sum(row[0] for row in warm)
            pages = sum(row[1]["cached"] for row in warm if row[1]["cached_from"] == "pages")
            snapshots = sum(row[1]["cached"] for row in warm if row[1]["cached_from"] == "snapshot")
            print(f"| `{policy}` | {prompt} | {pages} ({100 * pages / prompt:.0f}%) | {snapshots} "
                  f"({100 * snapshots / prompt:.0f}%) | {100 * (pages + snapshots) / prompt:.0f}% | "
                  f"{sum(row[2] for row in warm):.2f} | {sum(row[2] for row in cold):.2f} |", flush=True)
    finally:
        server.kill()


if __name__ == "__main__":
    main()
