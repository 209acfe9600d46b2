#!/usr/bin/env python3
"""Tokens/s and time to first token of a server under several clients, beside llama-server:

  serve_load.py MODEL --kvasir build/release/bin/kvasir [--llama-server PATH] [--clients 16] [--prefix 0] [--repeats 3]

Every client sends one request after the other: a prefix that all share, some tokens of its own, and so many to generate. The
servers run in turn, each alone, with the same model, threads, context and load; a first round is not counted. Prints one
JSON object for each server: medians over the repeats, and the spread (least and most).
"""

import argparse
import json
import os
import random
import re
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import time


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def start(options, name):
    port, context = free_port(), options.context
    if name == "kvasir":
        command = [options.kvasir, "serve", "-m", options.model, "--port", str(port), "--kv", "full", "--max-batch",
                   str(options.clients), "-t", str(options.threads), *options.kvasir_options]
        if options.kv_memory:
            command += ["--kv-memory", options.kv_memory]
    else:
        command = [options.llama_server, "-m", options.model, "--port", str(port), "-np", str(options.clients), "-t",
                   str(options.threads), "-c", str(context * options.clients), "-fa", "on", "--no-webui", *options.llama_options]
    began = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL if not options.verbose else None)
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as one:
                one.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                if b" 200 " in one.recv(100):
                    break
        except OSError:
            pass
        if process.poll() is not None:
            sys.exit(f"{' '.join(command)} ended with {process.returncode}")
        time.sleep(0.01)
    return process, port, time.monotonic() - began


class Client:
    def __init__(self, port, bodies):
        self.port, self.bodies, self.tokens, self.first, self.gaps, self.total = port, bodies, 0, [], [], []

    def begin(self, selector):
        body = json.dumps(self.bodies.pop()).encode()
        self.socket = socket.create_connection(("127.0.0.1", self.port))
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nConnection: close\r\n"
                            b"Content-Length: %d\r\n\r\n" % len(body) + body)
        self.began, self.newest, self.got = time.monotonic(), None, b""
        selector.register(self.socket, selectors.EVENT_READ, self)

    def readable(self, selector):
        part = self.socket.recv(1 << 20)
        now = time.monotonic()
        if b'"text":"' in part.replace(b'"text":""', b""):
            if self.newest is None:
                self.first.append(now - self.began)
            else:
                self.gaps.append(now - self.newest)
            self.newest = now
        self.got += part
        if part:
            return True
        selector.unregister(self.socket)
        self.socket.close()
        counts = re.findall(rb'"completion_tokens":(\d+)', self.got)
        if not counts or b" 200 " not in self.got[:20]:
            sys.exit("no answer: " + self.got[:500].decode(errors="replace"))
        self.tokens += int(counts[-1])
        self.total.append(now - self.began)
        if self.bodies:
            self.begin(selector)
            return True
        return False


def round_of(port, options, rng):
    """One round: every client's requests, all different but for the prefix."""
    shared = [rng.randrange(options.least_id, options.most_id) for _ in range(options.prefix)]
    clients = []
    for _ in range(options.clients):
        bodies = [{"prompt": shared + [rng.randrange(options.least_id, options.most_id) for _ in range(options.own)],
                   "max_tokens": options.generate, "temperature": options.temperature, "ignore_eos": True, "stream": True,
                   "stream_options": {"include_usage": True}} for _ in range(options.requests)]
        clients.append(Client(port, bodies))
    selector, began = selectors.DefaultSelector(), time.monotonic()
    for client in clients:
        client.begin(selector)
    left = len(clients)
    while left:
        for key, _ in selector.select():
            left -= not key.data.readable(selector)
    seconds = time.monotonic() - began
    first = sorted(value for client in clients for value in client.first)
    gaps = sorted(value for client in clients for value in client.gaps) or [0]
    at = lambda values, share: values[min(len(values) - 1, int(share * len(values)))]
    return {"tokens_per_s": sum(client.tokens for client in clients) / seconds, "seconds": seconds,
            "first_token_p50_s": at(first, 0.5), "first_token_p99_s": at(first, 0.99),
            "gap_p50_ms": 1000 * at(gaps, 0.5), "gap_p99_ms": 1000 * at(gaps, 0.99)}


def measure(options, name):
    process, port, start_seconds = start(options, name)
    try:
        rng = random.Random(5)
        if not options.no_warm_up:
            warm = argparse.Namespace(**{**vars(options), "requests": 1, "prefix": 0, "own": 16, "generate": 4})
            round_of(port, warm, rng)
        ticks = lambda: sum(map(int, open(f"/proc/{process.pid}/stat").read().rsplit(")", 1)[1].split()[11:13]))
        cpu, began = ticks(), time.monotonic()
        rounds = [round_of(port, options, rng) for _ in range(options.repeats)]
        busy = (ticks() - cpu) / os.sysconf("SC_CLK_TCK") / (time.monotonic() - began)
        resident = int(re.search(r"VmHWM:\s+(\d+)", open(f"/proc/{process.pid}/status").read())[1]) >> 10
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
    report = {"server": name, "clients": options.clients, "prefix": options.prefix, "own": options.own, "generate": options.generate,
              "temperature": options.temperature, "repeats": options.repeats, "start_s": round(start_seconds, 2),
              "resident_most_mib": resident, "cores_busy": round(busy, 2)}
    for key in rounds[0]:
        values = [one[key] for one in rounds]
        report[key] = [round(value, 3) for value in (statistics.median(values), min(values), max(values))]
    print(json.dumps(report), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvasir")
    parser.add_argument("--llama-server")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--prefix", type=int, default=0, help="tokens that all prompts of a round share")
    parser.add_argument("--own", type=int, default=64, help="tokens of a prompt's own")
    parser.add_argument("--generate", type=int, default=32)
    parser.add_argument("--temperature", type=float, default=0)
    parser.add_argument("--requests", type=int, default=1, help="of each client in a round, one after the other")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--context", type=int, default=2048, help="tokens of each request that llama-server has room for")
    parser.add_argument("--kv-memory", help="of kvasir; default: its own")
    parser.add_argument("--least-id", type=int, default=100, help="of the random token ids")
    parser.add_argument("--most-id", type=int, default=8000, help="and below this; at most the size of the vocabulary")
    parser.add_argument("--no-warm-up", action="store_true")
    parser.add_argument("--verbose", action="store_true")
    parser.add_argument("--kvasir-options", nargs="*", default=[])
    parser.add_argument("--llama-options", nargs="*", default=[])
    options = parser.parse_args()
    for name in ("kvasir", "llama-server"):
        path = getattr(options, name.replace("-", "_"))
        if path and not shutil.which(path):
            sys.exit(f"there is no program {path}")
        if path:
            measure(options, name)


if __name__ == "__main__":
    main()
