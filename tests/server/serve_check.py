"""Talks to `kvasir serve` as clients do: serve_check.py KVASIR MODEL

Starts the server on a free port, and checks answers, streams, errors, cancellation, limits and the end. What an answer
should say comes from `kvasir run` with the same options.
"""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time


class Server:
    def __init__(self, kvasir, model, *options, before=None, port=0, name="m"):
        self.kvasir, self.model = kvasir, model
        named = ["--name", name] if name else []  # else the file's
        self.process = subprocess.Popen([kvasir, "serve", "-m", model, "--port", str(port), *named, *options],
                                        stderr=subprocess.PIPE, text=True, preexec_fn=before)
        for line in self.process.stderr:
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        else:
            sys.exit("the server did not start")
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)
        data = body if body is None or isinstance(body, (bytes, str)) else json.dumps(body)
        connection.request(method, path, data, headers or {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def post(self, path, body):
        status, _, text = self.ask("POST", path, body)
        return status, json.loads(text)

    def sample(self, name):
        """A metric of one sample."""
        text = self.ask("GET", "/metrics")[2].decode()
        return float(re.search(rf"^kvasir:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1])

    def cpu_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def run(self, *arguments):
        done = subprocess.run([self.kvasir, "run", "-m", self.model, "--json", "--temp", "0", *arguments], check=True,
                              capture_output=True, text=True)
        return json.loads(done.stdout)

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(300)


def events(text):
    return [line[len("data: "):] for line in text.decode().split("\n") if line.startswith("data: ")]


def check_answers(server):
    want = server.run("-p", "Once upon a time", "-n", "20")
    status, got = server.post("/v1/completions", {"model": "m", "prompt": "Once upon a time", "max_tokens": 20,
                                                  "temperature": 0})
    assert status == 200 and got["choices"][0]["text"] == want["text"], (got, want)
    assert got["usage"]["prompt_tokens"] == want["prompt_tokens"] and got["usage"]["completion_tokens"] == want["tokens"]
    assert got["kv"]["policy"] and got["kv"]["seen"] >= want["prompt_tokens"]
    want = server.run("--chat", "-p", "Who are you?", "-n", "20")
    chat = {"messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 20, "temperature": 0}
    status, got = server.post("/v1/chat/completions", chat)
    assert status == 200 and got["choices"][0]["message"]["content"] == want["text"], (got, want)
    status, _, text = server.ask("POST", "/v1/chat/completions",
                                 {**chat, "stream": True, "stream_options": {"include_usage": True}})
    said = events(text)
    assert status == 200 and said[-1] == "[DONE]"
    chunks = [json.loads(each) for each in said[:-1]]
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"]) == want["text"]
    assert chunks[-1]["usage"]["completion_tokens"] == want["tokens"]
    status, got = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 5, "n": 3, "seed": 7})
    assert status == 200 and [choice["index"] for choice in got["choices"]] == [0, 1, 2]


def check_errors(server):
    for body, param in (({}, "messages"), ({"messages": []}, "messages"), ({"messages": [{"role": 5}]}, "messages"),
                        ({"messages": [{"role": "user", "content": "x"}], "tools": [{}]}, "tools"),
                        ({"messages": [{"role": "user", "content": "x"}], "max_tokens": -2}, "max_tokens"),
                        ({"messages": [{"role": "user", "content": "x"}], "n": 65}, "n"),
                        ({"messages": [{"role": "user", "content": "x"}], "temperature": "hot"}, "temperature")):
        status, got = server.post("/v1/chat/completions", body)
        assert status == 400 and got["error"]["param"] == param, (body, status, got)
    for body in (b"{", b"[]", b"null", b'{"a":' * 1000, b"\xff\xfe"):
        status, got = server.post("/v1/chat/completions", body)
        assert status == 400 and got["error"]["message"], (body[:20], status, got)
    for body, said in ((b'{"prompt":"a\xff"}', "at byte 13 (the first is 1): invalid string: ill-formed UTF-8 byte"), (b"", "unexpected end of input"),
                       (b'{"temperature":1e999}', "not valid JSON: number overflow")):
        message = server.post("/v1/completions", body)[1]["error"]["message"]
        assert said in message and "exception" not in message, (body, message)
    status, got = server.post("/v1/completions", {"prompt": "x", "model": "other"})
    assert status == 404 and got["error"]["code"] == "model_not_found"
    assert server.ask("GET", "/nowhere")[0] == 404 and server.ask("GET", "/v1/completions")[0] == 405
    assert server.ask("POST", "/v1/completions", b"x" * (9 << 20))[0] == 413
    assert server.ask("GET", "/health", headers={"X-Large": "x" * 20000})[0] == 431
    assert server.ask("GET", "/health", headers={f"X-{i}": "x" for i in range(100)})[0] == 431
    with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
        raw.sendall(b"\x16\x03\x01 this is TLS\r\n\r\n")
        assert b" 400 " in raw.recv(100)


def check_leaving(server):
    """A client that leaves in the middle of a stream frees the engine."""
    with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
        body = json.dumps({"prompt": "Once", "max_tokens": 10**9, "stream": True, "ignore_eos": True,
                           "kv": {"policy": "streaming:window=60"}}).encode()
        raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        got = b""
        while b"data: " not in got:
            got += raw.recv(10000)
    for _ in range(6000):
        if server.sample("num_requests_running") == 0:
            return
        time.sleep(0.02)
    raise AssertionError("an answer without end goes on without its client")


def check_many(server):
    """Greedy answers are the same alone and in company."""
    alone = server.post("/v1/completions", {"prompt": "The old man", "max_tokens": 30, "temperature": 0})[1]
    texts = []

    def one():
        texts.append(server.post("/v1/completions", {"prompt": "The old man", "max_tokens": 30, "temperature": 0})[1])

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(texts) == 16 and all(t["choices"][0]["text"] == alone["choices"][0]["text"] for t in texts)


def main(kvasir, model):
    server = Server(kvasir, model)
    try:
        for check in (check_answers, check_errors, check_leaving, check_many):
            began = time.time()
            check(server)
            print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)
        assert server.end() == 0
        print("ended as it should")
    finally:
        server.process.kill()


if __name__ == "__main__":
    main(*sys.argv[1:3])
