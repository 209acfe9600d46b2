"""Clients that do not read what they asked for, and others beside them: readers_check.py KVASIR MODEL [--short]

A stream that nobody reads is closed by the server: when more than --max-unread waits for its reader, or when the reader
has taken nothing for --write-timeout. The log and the metrics say so, and other streams go on. Answers whose first chunks
are larger than --max-unread reach a client that reads. --short: one of each, for a server with sanitizers.
"""

import json
import socket
import sys
import threading
import time

from live_server import LiveServer, wait_for

COMPLETIONS = "/v1/completions"
STORY = "Once upon a time there was a little fox. "


class Unread:
    """A stream whose client reads its header and then nothing more. Its chunks are large: each token with 20 others."""

    def __init__(self, server, **more):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.settimeout(600)
        self.socket.connect(("127.0.0.1", server.port))
        body = json.dumps({"prompt": STORY, "max_tokens": 1000000, "ignore_eos": True, "stream": True, "n": 16, "logprobs": 20,
                           "kv": {"policy": "streaming:window=60"}, **more}).encode()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        self.got = self.socket.recv(1000)
        assert self.got.startswith(b"HTTP/1.1 200 "), self.got

    def rest(self):
        """What still comes until the server's end of the connection."""
        got = self.got
        try:
            while part := self.socket.recv(65536):
                got += part
        except ConnectionError:
            pass
        self.socket.close()
        return got


def abandoned(server):
    return float(server.metrics()['kvasir:request_success_total{finished_reason="abandoned",model_name="m"}'])


def read_stream(answer, steps=None):
    """The text of a stream; `steps` gets the time of each chunk."""
    text, done = "", False
    for line in answer:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            text += "".join(choice["text"] for choice in chunk["choices"])
            if steps is not None:
                steps.append(time.monotonic())
        done = done or line.startswith(b"data: [DONE]")
    assert done, f"a stream ends too early: {text[-100:]}"
    return text


def begin_stream(server, **body):
    connection = server.connect()
    connection.request("POST", COMPLETIONS, json.dumps({"temperature": 0, "stream": True, **body}))
    answer = connection.getresponse()
    assert answer.status == 200, (answer.status, answer.read())
    return answer


def check_unread(server, count=2):
    """Streams that nobody reads: the server ends them, and another one, which is read meanwhile, is whole."""
    polite = {"prompt": STORY, "max_tokens": 100, "ignore_eos": True}
    alone = server.complete(**polite)[1]["choices"][0]["text"]
    before = abandoned(server)
    unread = [Unread(server) for _ in range(count)]
    rounds, steps, over = 0, [], False
    while not over:
        # Each of these would take for ever if the server waited for a reader.
        assert read_stream(begin_stream(server, **polite), steps) == alone
        rounds += 1
        over = abandoned(server) >= before + len(unread)
        assert rounds < 10000, "the server goes on for nobody"
    wait_for(lambda: server.metric("kvasir:num_requests_running") == 0, "a request that was abandoned still runs")
    for stream in unread:
        got = stream.rest()
        assert b"data: [DONE]" not in got and b'"finish_reason":"' not in got, got[-300:]
    gaps = [after - now for now, after in zip(steps, steps[1:])]
    print(f"  {rounds} streams were read meanwhile; the longest wait between two chunks: {1000 * max(gaps):.0f} ms")


def check_said(server, count=2):
    """The log has each of them, with the tokens that were generated."""
    wait_for(lambda: sum('"finish_reason":"abandoned"' in line for line in server.lines) >= count, "the log does not say it")
    for line in list(server.lines):
        if '"finish_reason":"abandoned"' in line:
            said = json.loads(line)
            assert said["http"] == 499 and said["generated_tokens"] > 0, said


def check_slow_reader(server):
    """A client that reads slowly, and less than waits for it, has its whole answer."""
    body = {"prompt": STORY, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    alone = server.complete(**body)[1]["choices"][0]["text"]
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.settimeout(600)
        raw.connect(("127.0.0.1", server.port))
        text = json.dumps({**body, "stream": True}).encode()
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(text) +
                    text)
        got = b""
        while part := raw.recv(400):
            got += part
            time.sleep(0.02)
    chunks = [json.loads(line[6:]) for line in got.decode().split("\n") if line.startswith("data: {")]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == alone and b"data: [DONE]" in got, got[-300:]


def check_burst(server, prompts, n, echo, size):
    """Of a body with many choices the first chunks alone are more than --max-unread; a client that reads gets all."""
    text = (STORY * (size // len(STORY) + 1))[:size]
    answer = begin_stream(server, prompt=[f"{i} {text}" for i in range(prompts)] if prompts > 1 else text, n=n, echo=echo,
                          max_tokens=2, ignore_eos=True, kv={"policy": "streaming:window=252"})
    texts, ended, done = [""] * (prompts * n), set(), False
    for line in answer:
        if line.startswith(b"data: {"):
            chunk = json.loads(line[6:])
            assert "error" not in chunk, chunk
            for choice in chunk["choices"]:
                texts[choice["index"]] += choice["text"]
                if choice["finish_reason"]:
                    ended.add(choice["index"])
        done = done or line.startswith(b"data: [DONE]")
    assert done and len(ended) == prompts * n, (done, len(ended))
    for i, got in enumerate(texts):
        want = f"{i // n} {text}" if prompts > 1 else text
        assert got.startswith(want) and len(got) > len(want) if echo else got, (i, len(got), got[:50])


def main(kvasir, model, short=""):
    def run(check, *arguments):
        began = time.time()
        check(*arguments)
        print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)

    log = ("--log-format", "json", "--prefix-memory", "0")
    if short == "--short":
        with LiveServer(kvasir, model, "--max-unread", "64KiB", "--write-timeout", "1000", *log) as server:
            run(check_burst, server, 1, 16, True, 20 << 10)
            run(check_unread, server, 1)
            run(check_said, server, 1)
            assert server.end() == 0
        return
    # By what waits: no write takes too long.
    with LiveServer(kvasir, model, "--max-unread", "64KiB", "--write-timeout", "1000", *log) as server:
        for check in (check_unread, check_said, check_slow_reader):
            run(check, server)
        assert server.end() == 0
    # By time: nothing is too much.
    with LiveServer(kvasir, model, "--max-unread", "4GiB", "--write-timeout", "1", *log) as server:
        for check in (check_unread, check_said):
            run(check, server)
        assert server.end() == 0
    # With --queue-timeout a stream begins only with its first pass.
    for more in ((), ("--queue-timeout", "600")):
        with LiveServer(kvasir, model, "--max-unread", "256KiB", *more, *log) as server:
            for arguments in ((1, 64, True, 20 << 10), (64, 2, True, 3 << 10)):
                run(check_burst, server, *arguments)
            assert server.end() == 0


if __name__ == "__main__":
    main(*sys.argv[1:4])
