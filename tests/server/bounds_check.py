"""What `kvasir serve` holds for its clients, and whom it answers: bounds_check.py KVASIR MODEL [--short]

--short: without what takes minutes on a server with sanitizers.
"""

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

from live_server import UNREAD, LiveServer, wait_for

COMPLETIONS = "/v1/completions"


def head_of(method, path, length=None, **fields):
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost"] + [f"{name}: {value}" for name, value in fields.items()]
    if length is not None:
        lines.append(f"Content-Length: {length}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


def connect(server, source="127.0.0.1", timeout=300):
    return socket.create_connection(("127.0.0.1", server.port), timeout, (source, 0))


def read_head(raw):
    got = b""
    while b"\r\n\r\n" not in got:
        part = raw.recv(65536)
        assert part, f"closed after {got}"
        got += part
    return got


def check_head_of_stream(server):
    """HEAD of a stream has no body, leaves the connection usable, and keeps no place among the watchers."""
    raw = connect(server)
    for _ in range(70):
        raw.sendall(head_of("HEAD", "/v1/kv/live"))
        got = read_head(raw)
        assert got.startswith(b"HTTP/1.1 200 ") and got.endswith(b"\r\n\r\n"), got
    time.sleep(0.6)
    raw.sendall(head_of("GET", "/health"))
    assert read_head(raw).startswith(b"HTTP/1.1 200 ")
    raw.close()
    connection = server.connect()
    connection.request("GET", "/v1/kv/live")
    assert connection.getresponse().status == 200


def check_model_names(server):
    for name in ("org%2Fmodel", "org%2fmodel", "%6frg%2Fmodel", "org/model"):
        status, _, text = server.ask("GET", "/v1/models/" + name)
        assert status == 200 and json.loads(text)["id"] == "org/model", (name, status, text)
    for name in ("org/model/x", "org%2", "org%2Fmodel%", "org%2Gmodel", "org%2Fmodel%00", "%00", "other"):
        assert server.ask("GET", "/v1/models/" + name)[0] == 404, name


def check_other_sites(server):
    """Without keys, pages of other sites are refused, and those of this machine are answered."""
    port = server.port

    def ask(host, **fields):
        fields = {name.replace("_", "-"): value for name, value in fields.items()}
        body = json.dumps({"prompt": "Once", "max_tokens": 1})
        status, _, text = server.ask("POST", COMPLETIONS, body, {**({"Host": host} if host else {}), **fields})
        return status, text

    for host in ("localhost", f"localhost:{port}", "LocalHost:1", f"127.0.0.1:{port}", "127.5.6.7", f"[::1]:{port}", "[::1]"):
        assert ask(host)[0] == 200, host
    for host in ("evil.example", f"evil.example:{port}", "127.0.0.1.evil.example", "localhost.evil.example", "127.evil.example",
                 "[::2]", "::1", "[::1", "[::1].evil.example", "localhost:x", "192.168.0.1", "0.0.0.0"):
        status, text = ask(host)
        assert status == 403 and "--api-keys" in text and "foreign_host" in text, (host, status, text)
    for origin in (f"http://localhost:{port}", "http://127.0.0.1:3000", "https://localhost", "http://[::1]:5"):
        assert ask("localhost", Origin=origin)[0] == 200, origin
        assert ask("localhost", Origin=origin, Sec_Fetch_Site="same-origin")[0] == 200, origin
    for origin in ("http://evil.example", "null", "file://", "http://localhost.evil.example", "chrome-extension://localhost"):
        status, text = ask("localhost", Origin=origin, Content_Type="text/plain")
        assert status == 403 and "--api-keys" in text and "foreign_origin" in text, (origin, status, text)
    assert ask("localhost", Sec_Fetch_Site="cross-site")[0] == 403
    assert server.ask("GET", "/v1/kv/state", headers={"Host": "evil.example"})[0] == 403
    # What holds no data is for anybody: health checks, and links to the page.
    for path in ("/health", "/ready", "/"):
        assert server.ask("GET", path, headers={"Host": "evil.example", "Sec-Fetch-Site": "cross-site"})[0] == 200, path


def check_small_rules(server):
    status, headers, _ = server.ask("GET", "/")
    status, headers, _ = server.ask("GET", "/", headers={"If-None-Match": headers["ETag"]})
    assert status == 304 and "Content-Length" not in headers, headers
    raw = connect(server)
    raw.sendall(b"GET http://localhost?x=1 HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert read_head(raw).startswith(b"HTTP/1.1 200 ")
    raw.close()
    body = json.dumps({"prompt": "Once", "max_tokens": 1}).encode()
    raw = connect(server)  # HTTP/1.0 has no 100 Continue
    raw.sendall(b"POST /v1/completions HTTP/1.0\r\nExpect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert read_head(raw).startswith(b"HTTP/1.1 200 ")
    raw.close()
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "ignore_eos": True}

    def ask(body):
        status, _, text = server.ask("POST", "/v1/chat/completions", body)
        return status, json.loads(text) if status != 200 or not body.get("stream") else text

    status, text = ask({**chat, "stream": True, "stream_options": {"include_usage": True}})
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False], text
    status, text = ask({**chat, "stream": True})
    assert '"usage"' not in text


def check_stalled_body(server):
    """A client that has sent much of a body at once gets no more time for the rest. Needs --body-timeout 1."""
    raw = connect(server)
    raw.sendall(head_of("POST", COMPLETIONS, 1 << 20) + b"x" * ((1 << 20) - 100))
    # At the least rate, what it has sent would be worth 1000 s.
    assert raw.recv(1) == b"", "closed without an answer"
    raw.close()
    # Over the least rate all the time, for longer than --body-timeout. Where this client is held up, it tries again.
    body = json.dumps({"prompt": "Once", "max_tokens": 1}).encode() + b" " * 6000
    for _ in range(20):
        raw = connect(server)
        try:
            raw.sendall(head_of("POST", COMPLETIONS, len(body)))
            for i in range(0, len(body), 300):
                raw.sendall(body[i:i + 300])
                time.sleep(0.1)
            assert read_head(raw).startswith(b"HTTP/1.1 200 ")
            break
        except (ConnectionError, AssertionError):
            pass
        finally:
            raw.close()
    else:
        raise AssertionError("a body that comes fast enough is cut off")


def check_large_bodies(server):
    """Bodies of one client take half of the room for all, and then its own are refused, not those of others."""
    size = 8 << 20
    held = []
    for _ in range(20):
        held.append(connect(server, "127.0.0.5"))
        with contextlib.suppress(ConnectionError):
            held[-1].sendall(head_of("POST", COMPLETIONS, size) + b"x" * (size - 1))
    answers = {}
    end = time.time() + 300
    while len(answers) < 4:  # 16 of them are 128 MiB
        assert time.time() < end, answers
        for raw in select.select(held, [], [], 1)[0]:
            with contextlib.suppress(ConnectionError):
                answers[raw] = raw.recv(12, socket.MSG_PEEK)
    assert set(answers.values()) == {b"HTTP/1.1 503"}, answers
    raw = connect(server, "127.0.0.6")
    raw.sendall(head_of("POST", "/tokenize", size) + json.dumps({"prompt": "x"}).encode().ljust(size))
    assert read_head(raw).startswith(b"HTTP/1.1 200 ")
    for each in [raw, *held]:
        each.close()


def check_queue(kvasir, model):
    """--queue bounds all that wait, those for memory too."""
    # A second request of this size waits until the first one has ended.
    large = {"max_tokens": 10**9, "ignore_eos": True, "kv": {"policy": "streaming:cap=2000"}}
    with LiveServer(kvasir, model, "--queue", "4", "--kv-memory", "8MiB", "--admission", "reserve", *UNREAD) as server:
        holder = server.stream(**large)
        statuses = []

        def one():
            statuses.append(server.complete(**{**large, "max_tokens": 2000, "stop": [" "]})[0])

        threads = [threading.Thread(target=one, daemon=True) for _ in range(40)]
        for thread in threads:
            thread.start()
        wait_for(lambda: len(statuses) >= 36, "too few are refused")
        wait_for(lambda: server.metric("kvasir:num_requests_waiting") == 4)
        assert server.running() == 1
        several = {"prompt": ["a", "b", "c", "d", "e"], "max_tokens": 1}
        status, answer = server.complete(**several)
        assert status == 429 and answer["error"]["code"] == "queue_full", answer
        holder.fp.raw._sock.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        assert sorted(statuses) == [200] * 4 + [429] * 36, statuses
        # More prompts than there are places take them one after the other.
        status, answer = server.complete(**several)
        assert status == 200 and [each["index"] for each in answer["choices"]] == [0, 1, 2, 3, 4], answer
        assert server.end() == 0


def check_lingering(kvasir, model):
    """Connections that were answered and are kept open by their clients give way to new ones."""
    with LiveServer(kvasir, model, "--max-connections", "8") as server:
        held = []
        for i in range(30):
            raw = connect(server)
            raw.sendall(b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n")
            got = b""
            while part := raw.recv(65536):
                got += part
            assert got.startswith(b"HTTP/1.1 505 ") and b'"type":"invalid_request_error"' in got, (i, got)
            held.append(raw)
        assert server.ask("GET", "/health")[0] == 200
        for raw in held:
            raw.close()
        assert server.end() == 0


class Tenants:
    """A server with two tenants, and a key of an operator."""

    def __init__(self, kvasir, model, folder):
        self.kvasir, self.file = kvasir, os.path.join(folder, "keys.toml")
        for tenant in ("ann", "bob"):
            self.manage("tenant", tenant)
        self.ann, self.bob = (self.manage("add", "--tenant", tenant) for tenant in ("ann", "bob"))
        self.operator = self.manage("add", "--tenant", "ann", "--operator")
        self.server = LiveServer(kvasir, model, "--api-keys", self.file)

    def manage(self, *arguments):
        return subprocess.run([self.kvasir, "keys", *arguments, "--api-keys", self.file], check=True, capture_output=True,
                              text=True).stdout.strip()

    def ask(self, key, method, path, body=None):
        status, _, text = self.server.ask(method, path, body, {"Authorization": f"Bearer {key}"} if key else {})
        return status, text


def check_operators(tenants):
    """Figures of the whole server are an operator's."""
    assert [tenants.ask(key, "GET", "/metrics")[0] for key in (None, tenants.ann, tenants.bob, tenants.operator)] == [
        401, 403, 403, 200]
    error = json.loads(tenants.ask(tenants.bob, "GET", "/metrics")[1])["error"]
    assert error["code"] == "operator_key_required" and "--operator" in error["message"], error
    body = {"prompt": "once upon a time " * 50, "max_tokens": 5, "ignore_eos": True}  # leaves a prefix
    assert tenants.ask(tenants.ann, "POST", COMPLETIONS, body)[0] == 200
    wait_for(lambda: 'tenant="ann"' in tenants.ask(tenants.operator, "GET", "/metrics")[1])
    plans = {key: json.loads(tenants.ask(key, "POST", "/v1/kv/plan", {"prompt_tokens": 10})[1])
             for key in (tenants.bob, tenants.operator)}
    for field in ("kv_used", "kv_free", "fits_now"):
        assert plans[tenants.bob][field] is None and plans[tenants.operator][field] is not None, plans
    states = {key: json.loads(tenants.ask(key, "GET", "/v1/kv/state")[1]) for key in (tenants.bob, tenants.operator)}
    assert states[tenants.bob]["memory"]["used"] == 0 and "load" not in states[tenants.bob], states
    assert states[tenants.operator]["memory"]["used"] > 0 and states[tenants.operator]["load"], states
    assert [key["operator"] for key in json.loads(tenants.manage("list", "--json"))["keys"]] == [False, False, True]


def check_keys_come_first(tenants):
    """Without a key no body is read, nor asked for."""
    for fields in ({}, {"Expect": "100-continue"}, {"Authorization": "Bearer wrong"}):
        for path, status in ((COMPLETIONS, b"401"), ("/nowhere", b"404"), ("/health", b"405")):
            raw = connect(tenants.server)
            raw.sendall(head_of("POST", path, 100000, **fields))
            assert read_head(raw).startswith(b"HTTP/1.1 " + status), (fields, path)
            raw.close()
    # With one, it is.
    body = json.dumps({"prompt": "Once", "max_tokens": 1}).encode()
    raw = connect(tenants.server)
    raw.sendall(head_of("POST", COMPLETIONS, len(body), Expect="100-continue", Authorization=f"Bearer {tenants.bob}"))
    assert read_head(raw).startswith(b"HTTP/1.1 100 ")
    raw.sendall(body)
    assert read_head(raw).startswith(b"HTTP/1.1 200 ")
    raw.close()


def answered(large):
    """How many of these connections have had the start of an answer."""
    return len(select.select(large, [], [], 0)[0])


def check_turns(tenants):
    """Large texts of one tenant hold up another, and the tenant's own small ones, for no more than a few of them."""
    body = json.dumps({"prompt": "once upon a time " * 300000}).encode()
    seen = []
    for _ in range(5):  # where this client is held up, the large ones may all be done before the small one is sent
        large = [connect(tenants.server) for _ in range(8)]
        for raw in large:
            raw.sendall(head_of("POST", "/tokenize", len(body), Authorization=f"Bearer {tenants.ann}") + body[:-1])
        for raw in large:
            raw.sendall(body[-1:])
        # From now on the others wait for their turn.
        wait_for(lambda: answered(large) > 0)
        done = []
        for key in (tenants.bob, tenants.ann):
            status, _ = tenants.ask(key, "POST", COMPLETIONS, {"prompt": "hi", "max_tokens": 1})
            assert status == 200
            done.append(answered(large))
        for raw in large:
            assert read_head(raw).startswith(b"HTTP/1.1 200 ")
            raw.close()
        print(f"  of 8 large requests, {done[0]} and {done[1]} had been answered when small ones were")
        seen.append(done)
        if max(done) <= 4:
            return
    raise AssertionError(f"small requests wait for large ones: {seen}")


def main(kvasir, model, short=""):
    def run(check, *arguments):
        began = time.time()
        check(*arguments)
        print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)

    with LiveServer(kvasir, model, "--name", "org/model", "--body-timeout", "1") as server:
        for check in (check_head_of_stream, check_model_names, check_other_sites, check_small_rules, check_stalled_body):
            run(check, server)
        assert server.end() == 0
    with LiveServer(kvasir, model, "--body-timeout", "100") as server:
        run(check_large_bodies, server)
        assert server.end() == 0
    run(check_lingering, kvasir, model)
    run(check_queue, kvasir, model)
    with tempfile.TemporaryDirectory() as folder:
        tenants = Tenants(kvasir, model, folder)
        with tenants.server as server:
            for check in (check_operators, check_keys_come_first, *([] if short else [check_turns])):
                run(check, tenants)
            assert server.end() == 0
        with LiveServer(kvasir, model, "--api-keys", tenants.file, "--metrics-open") as server:
            assert server.metrics()
            assert server.end() == 0


if __name__ == "__main__":
    main(*sys.argv[1:4])
