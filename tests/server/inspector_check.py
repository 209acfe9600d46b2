"""The Inspector's data and files: inspector_check.py KVASIR MODEL

Starts the server on a free port, and checks the page's headers, /v1/kv/state and /v1/kv/live while requests run.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time

from live_server import UNREAD, wait_for
from serve_check import Server, events


def ask_json(server, path):
    status, _, text = server.ask("GET", path)
    assert status == 200, (path, status, text)
    return json.loads(text)


def check_files(server):
    status, headers, page = server.ask("GET", "/")
    assert status == 200 and b"<title>Kvasir Inspector</title>" in page
    policy = headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy and "unsafe" not in policy and "frame-ancestors 'none'" in policy
    assert headers["X-Content-Type-Options"] == "nosniff" and headers["Content-Type"].startswith("text/html")
    assert b"http" not in page, "the page names no other server"
    status, again, text = server.ask("GET", "/", headers={"If-None-Match": headers["ETag"]})
    assert status == 304 and text == b"" and again["ETag"] == headers["ETag"]
    for path, kind in (("app.js", "text/javascript"), ("inspector.css", "text/css"), ("icon.svg", "image/svg+xml")):
        status, headers, text = server.ask("GET", "/assets/" + path)
        assert status == 200 and headers["Content-Type"].startswith(kind) and text, path
    assert server.ask("GET", "/assets/../serve.cc")[0] == 404 and server.ask("GET", "/assets/")[0] == 404
    policies = ask_json(server, "/v1/kv/policies")["policies"]
    assert {"full", "streaming", "h2o"} <= {policy["name"] for policy in policies}


def check_refusals(server):
    for query in ("sample=x", "sample=-1", "from=1e9", "from=99999999999999999999", "from=%20"):
        assert server.ask("GET", "/v1/kv/state?" + query)[0] == 400, query
    state = ask_json(server, "/v1/kv/state?request=nobody&&=&x")
    assert state["selected"] is None and state["sequences"] == [] and state["memory"]["budget"] > 0


def check_ended(server):
    """A request that asks for it can be looked at when it has ended."""
    body = {"prompt": "Once upon a time there was a king who", "max_tokens": 80, "ignore_eos": True,
            "kv": {"policy": "streaming:window=20", "inspect": True}}
    status, answer = server.post("/v1/completions", body)
    assert status == 200
    seen = ask_json(server, "/v1/kv/state?request=" + answer["id"])["selected"]
    assert seen["state"] == "ended" and seen["kept"] == answer["kv"]["kept"] == 24 and seen["sinks"] == 4
    runs = list(zip(seen["kept_runs"][::2], seen["kept_runs"][1::2]))
    assert [level for _, level in runs] == [8, 0, 8] and runs[0][0] == 4 and sum(n for n, _ in runs) == seen["seen"]
    said = "".join(text for i, text in enumerate(seen["texts"]) if i not in seen["controls"])
    assert said.startswith(body["prompt"]) and answer["choices"][0]["text"][:40] in said
    later = ask_json(server, f"/v1/kv/state?request={answer['id']}&from=30")["selected"]
    assert later["from"] == 30 and later["texts"] == seen["texts"][30:]
    del body["kv"]["inspect"]
    status, answer = server.post("/v1/completions", body)
    assert ask_json(server, "/v1/kv/state?request=" + answer["id"])["selected"] is None
    assert server.post("/v1/completions", {"prompt": "x", "kv": {"inspect": 1}})[0] == 400


def check_texts(server):
    """The texts of an answer's tokens are the answer, whatever tokens a model draws."""
    begun, marker = 6 + 0xE2, 4  # the byte that begins a character of three, and <|assistant|>
    body = {"prompt": [begun, marker, 300, begun], "max_tokens": 120, "ignore_eos": True, "temperature": 3,
            "kv": {"inspect": True}}
    hidden = 0
    for seed in range(24):
        status, answer = server.post("/v1/completions", body | {"seed": seed})
        assert status == 200
        seen = ask_json(server, "/v1/kv/state?request=" + answer["id"])["selected"]
        assert seen["texts"][:2] == ["\ufffd", "<|assistant|>"] and seen["texts"][3] == "\ufffd", seen["texts"][:4]
        said = "".join(text for i, text in enumerate(seen["texts"]) if i >= 4 and i not in seen["controls"])
        assert said == answer["choices"][0]["text"], (seed, said, answer["choices"][0]["text"])
        hidden += sum(i >= 4 for i in seen["controls"])
    assert hidden > 0, "some answers hold markers"


def open_stream(server, path, body=None, headers=None):
    raw = socket.create_connection(("127.0.0.1", server.port), 300)
    data = b"" if body is None else json.dumps(body).encode()
    method = b"GET" if body is None else b"POST"
    fields = "".join(f"{name}: {value}\r\n" for name, value in (headers or {}).items())
    raw.sendall(method + f" {path} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {len(data)}\r\n\r\n".encode() + data)
    return raw


def read_until(raw, done):
    text = b""
    while not done(text):
        more = raw.recv(65536)
        assert more, text[-500:]
        text += more
    return text


def check_live(server):
    """A stream follows a request of another connection, and a slow one disturbs nobody."""
    answer = open_stream(server, "/v1/completions", {"prompt": "Once", "max_tokens": 10**9, "stream": True, "n": 2,
                                                     "ignore_eos": True, "kv": {"policy": "h2o:budget=40"}})
    name = json.loads(events(read_until(answer, lambda text: text.count(b"data: ") > 2))[0])["id"]
    idle = open_stream(server, "/v1/kv/live?request=" + name)
    began = time.monotonic()
    live = open_stream(server, f"/v1/kv/live?request={name}&sample=1")
    # The server may be held up, but has no more than its four a second, and the one at the start.
    text = read_until(live, lambda text: text.count(b"data: ") >= 6)
    count, took = text.count(b"data: "), time.monotonic() - began
    assert count <= 2 + 5 * took, (count, took)
    states = [json.loads(event) for event in events(text)[:5]]
    chosen = [state["selected"] for state in states]
    assert all(each["sample"] == 1 and each["request"] == name and each["state"] == "running" for each in chosen)
    assert chosen[-1]["seen"] > chosen[0]["seen"] and chosen[-1]["kept"] == 40
    assert any(0 < level < 8 for level in chosen[-1]["kept_runs"][1::2]), "layers differ"
    for one, other in zip(chosen, chosen[1:]):
        assert other["from"] == one["from"] + len(one["texts"]), "texts come once"
    assert [each["sample"] for each in states[-1]["sequences"]] == [0, 1]
    memory = states[-1]["memory"]
    assert 0 < memory["used"] <= memory["budget"]
    # Besides the new texts, whose number depends on how fast the model is.
    assert len(text) / count - max(len(json.dumps(each["texts"])) for each in chosen) < 60000
    live.close()
    answer.close()
    wait_for(lambda: ask_json(server, "/v1/kv/state")["sequences"] == [], "the client left")
    idle.close()


def check_many_watchers(server):
    streams = []

    def watches():  # once those of before are noticed to have left
        stream = open_stream(server, "/v1/kv/live")
        if not read_until(stream, lambda text: b"\r\n\r\n" in text).startswith(b"HTTP/1.1 200 "):
            return stream.close()
        return streams.append(stream) is None
    for _ in range(64):
        wait_for(watches, "there is no place for 64 watchers")
    assert server.ask("GET", "/v1/kv/live")[0] == 429
    began = time.time()
    assert server.post("/v1/completions", {"prompt": "Once", "max_tokens": 50, "ignore_eos": True})[0] == 200
    print(f"50 tokens beside 64 watchers: {time.time() - began:.2f} s")
    threads = [threading.Thread(target=stream.close) for stream in streams[1:]]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    again = []

    def has_a_place():
        again.append(open_stream(server, "/v1/kv/live"))
        return read_until(again[-1], lambda text: b"\r\n\r\n" in text).startswith(b"HTTP/1.1 200 ")

    wait_for(has_a_place, "those that left keep their places")
    return [streams[0], again[-1]]  # still open when the server ends


def check_tenants(kvasir, model):
    """A tenant sees its own requests, of others nothing; a revoked key ends what it watches."""
    with tempfile.TemporaryDirectory() as folder:
        keys = os.path.join(folder, "keys.toml")

        def manage(*arguments):
            return subprocess.run([kvasir, "keys", *arguments, "--api-keys", keys], check=True, capture_output=True,
                                  text=True).stdout.strip()

        for tenant in ("ann", "bob"):
            manage("tenant", tenant)
        headers = {tenant: {"Authorization": "Bearer " + manage("add", "--tenant", tenant)} for tenant in ("ann", "bob")}
        server = Server(kvasir, model, "--api-keys", keys, "--drain", "3600", *UNREAD)
        try:
            assert server.ask("GET", "/")[0] == 200 and server.ask("GET", "/assets/app.js")[0] == 200
            for path in ("/v1/kv/state", "/v1/kv/live", "/v1/kv/policies"):
                assert server.ask("GET", path)[0] == 401, path
            body = {"prompt": "Once", "max_tokens": 10**9, "stream": True, "ignore_eos": True,
                    "kv": {"policy": "streaming:window=60", "inspect": True}}
            answer = open_stream(server, "/v1/completions", body, headers["ann"])
            name = json.loads(events(read_until(answer, lambda text: text.count(b"data: ") > 2))[0])["id"]
            seen = {}
            for tenant in ("ann", "bob"):
                status, _, text = server.ask("GET", "/v1/kv/state?request=" + name, headers=headers[tenant])
                assert status == 200
                seen[tenant] = json.loads(text)
            assert seen["ann"]["selected"]["request"] == name and len(seen["ann"]["sequences"]) == 1
            assert seen["bob"]["selected"] is None and seen["bob"]["sequences"] == []
            # Of the memory, a tenant sees what its own requests hold.
            assert seen["ann"]["memory"]["used"] > 0 and seen["bob"]["memory"]["used"] == 0
            assert "prefix" not in seen["bob"]["memory"]
            assert "load" not in seen["bob"] and name not in json.dumps(seen["bob"])
            live = open_stream(server, "/v1/kv/live?request=" + name, None, headers["ann"])
            read_until(live, lambda text: b"data: " in text)
            listed = json.loads(manage("list", "--json"))
            [key] = [each["id"] for each in listed["keys"] if each["tenant"] == "ann"]
            manage("revoke", key)
            began = time.time()
            said = b""
            while not said.endswith(b"0\r\n\r\n"):  # the stream's last chunk
                assert time.time() - began < 300, "a revoked key goes on watching"
                said = (said + live.recv(65536))[-64:]
            answer.close()
            assert server.end() == 0
        finally:
            server.process.kill()


def main(kvasir, model):
    server = Server(kvasir, model, "--drain", "3600", *UNREAD)
    try:
        for check in (check_files, check_refusals, check_ended, check_texts, check_live):
            began = time.time()
            check(server)
            print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)
        left = check_many_watchers(server)
        assert server.end() == 0, "open pages do not keep the server from ending"
        for stream in left:
            stream.close()
        print("ended as it should")
    finally:
        server.process.kill()
    server = Server(kvasir, model, "--no-inspector")
    try:
        assert server.ask("GET", "/")[2] == b"Kvasir is running\n" and server.ask("GET", "/v1/kv/state")[0] == 404
        assert server.end() == 0
    finally:
        server.process.kill()
    check_tenants(kvasir, model)
    print("tenants see their own")


if __name__ == "__main__":
    main(*sys.argv[1:3])
