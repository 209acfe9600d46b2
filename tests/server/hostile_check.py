"""Sends `kvasir serve` what no honest client sends: hostile_check.py KVASIR MODEL [--seconds 14] [--strict]

Each thing gets an answer that refuses it, or a closed connection; the server goes on, its memory returns, and all requests
of another client are answered meanwhile. --strict, for a machine that is otherwise idle: they also take hardly longer. Uses
slowhttptest too where it is installed.
"""

import argparse
import contextlib
import http.client
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time

from serve_check import Server

COMPLETIONS = "/v1/completions"
CONNECTIONS = 1024  # the server's limit, of all clients together
MOST_P50, MOST_P99 = 1, 5  # seconds, with --strict
POLITE = 10  # requests of each kind that another client has answered during an attack
REFUSED = range(400, 600)


def post(body, path=COMPLETIONS, fields=b""):
    return (f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n").encode() + fields + b"\r\n" + body


def completion(**fields):
    return json.dumps({"prompt": "Once", "max_tokens": 1, "temperature": 0, **fields}).encode()


class Raw:
    """One connection, byte by byte."""

    def __init__(self, port, source="127.0.0.1"):
        self.socket = socket.create_connection(("127.0.0.1", port), 120, (source, 0))

    def send(self, data):
        # The server may have answered and closed before it has read all.
        with contextlib.suppress(ConnectionError):
            self.socket.sendall(data)

    def closed(self):
        """Whether the server has closed; drops what it has sent."""
        self.socket.setblocking(False)
        try:
            while self.socket.recv(65536):
                pass
            return True
        except BlockingIOError:
            return False
        except OSError:
            return True
        finally:
            self.socket.settimeout(120)

    def read(self):
        """All bytes until the server closes; None if it does not: no machine is so slow."""
        got = b""
        try:
            while part := self.socket.recv(65536):
                got += part
        except ConnectionError:
            pass
        except TimeoutError:
            return None
        return got

    def close(self):
        self.socket.close()


def exchange(port, data, half_close=False):
    """Statuses of what the server answers before it closes; it must close."""
    raw = Raw(port)
    raw.send(data)
    if half_close:
        with contextlib.suppress(OSError):
            raw.socket.shutdown(socket.SHUT_WR)
    got = raw.read()
    raw.close()
    assert got is not None, f"neither an answer that ends nor a closed connection for {data[:100]}"
    return [int(status) for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", got)]


def check_http(server):
    """Requests that are none, and those that two programs could read in two ways."""
    get = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
    smuggled = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    chunked = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n"
    for name, data in {
            "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200) + b"\r\n\r\n",
            "HTTP/0.9": b"GET /\r\n\r\n",
            "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            "HTTP/3.0": b"GET /health HTTP/3.0\r\nHost: localhost\r\n\r\n",
            "no version": b"GET /health\r\nHost: localhost\r\n\r\n",
            "no Host": b"GET /health HTTP/1.1\r\n\r\n",
            "two Hosts": get + b"Host: y\r\n\r\n",
            "a space in a name": get + b"X Y: z\r\n\r\n",
            "a space behind a name": chunked.replace(b"Encoding:", b"Encoding :") + b"\r\n0\r\n\r\n" + smuggled,
            "NUL in a name": get + b"X\0Y: z\r\n\r\n",
            "NUL in a value": get + b"X: a\0b\r\n\r\n",
            "a bare CR": get + b"X: a\rY: b\r\n\r\n",
            "no name": get + b": x\r\n\r\n",
            "length and chunks": chunked + b"Content-Length: 5\r\n\r\n0\r\n\r\n" + smuggled,
            "chunks and length": post(b"0\r\n\r\n" + smuggled, fields=b"Transfer-Encoding: chunked\r\n"),
            "an unknown coding": chunked.replace(b"chunked", b"xchunked") + b"\r\n0\r\n\r\n" + smuggled,
            "an unknown coding and a length": post(b"{}", fields=b"Transfer-Encoding: identity\r\n"),
            "codings": chunked.replace(b"chunked", b"gzip, chunked") + b"\r\n0\r\n\r\n" + smuggled,
            "chunked twice": chunked + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + smuggled,
            "chunks in HTTP/1.0": chunked.replace(b"HTTP/1.1", b"HTTP/1.0") + b"\r\n0\r\n\r\n" + smuggled,
            "two lengths": post(b"{}").replace(b"Host: localhost", b"Host: localhost\r\nContent-Length: 7") + smuggled,
            "a length with a sign": post(b"{}").replace(b"Length: 2", b"Length: +2"),
            "a negative length": post(b"{}").replace(b"Length: 2", b"Length: -2"),
            "a length in hexadecimal": post(b"{}").replace(b"Length: 2", b"Length: 0x2"),
            "a length of 10^30": post(b"{}").replace(b"Length: 2", b"Length: 1" + b"0" * 30),
            "a length of 8 EiB": post(b"{}").replace(b"Length: 2", b"Length: 9223372036854775807"),
            "a chunk size that is none": chunked + b"\r\nxyz\r\n{}\r\n0\r\n\r\n",
            "a negative chunk size": chunked + b"\r\n-2\r\n{}\r\n0\r\n\r\n",
            "a chunk size of 10^30": chunked + b"\r\n" + b"f" * 30 + b"\r\n{}\r\n0\r\n\r\n",
            "a chunk size of 8 EiB": chunked + b"\r\n7fffffffffffffff\r\n{}",
            "a chunk that is longer than its size": chunked + b"\r\n1\r\n{}\r\n0\r\n\r\n",
            "a chunk extension without end": chunked + b"\r\n2;" + b"x" * 2000000,
            "trailers without end": chunked + b"\r\n0\r\n" + b"X: y\r\n" * 200000,
            "a long path": b"GET /" + b"x" * 20000 + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "a long method": b"G" * 20000 + b" / HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "many fields": get + b"".join(b"X-%d: y\r\n" % i for i in range(80)) + b"\r\n",
            "fields without end": get + b"X: y\r\n" * 100000,
            "one field without end": get + b"X: " + b"y" * 1000000,
            "an expectation": post(b"{}", fields=b"Expect: the-unexpected\r\n"),
    }.items():
        statuses = exchange(server.port, data)
        assert len(statuses) <= 1 and all(status in REFUSED for status in statuses), (name, statuses)
    for version in (b"0.9", b"1.2", b"2.0", b"3.0", b"9.9"):
        assert exchange(server.port, get.replace(b"1.1", version) + b"\r\n") == [505], version
    assert exchange(server.port, get.replace(b"HTTP/1.1", b"HTTP/one") + b"\r\n") == [400]
    # What is wrong with the body's length is said.
    for fields, said in ((b"Content-Length: -1", b"'Content-Length' must be a whole number"),
                         (b"Content-Length: 1" + b"0" * 30, b"'Content-Length' must be a whole number"),
                         (b"Content-Length: 2\r\nContent-Length: 3", b"'Content-Length' more than once"),
                         (b"Content-Length: 2\r\nTransfer-Encoding: chunked", b"both 'Content-Length' and 'Transfer-Encoding'"),
                         (b"Transfer-Encoding: chunked\r\nContent-Length: 2", b"both 'Content-Length' and 'Transfer-Encoding'"),
                         (b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked", b"'Transfer-Encoding' more than once"),
                         (b"Transfer-Encoding: gzip", b"by one 'Content-Length' or by 'Transfer-Encoding: chunked'")):
        raw = Raw(server.port)
        raw.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n" + fields + b"\r\n\r\n{}")
        got = raw.read()
        raw.close()
        assert got.startswith(b"HTTP/1.1 400 ") and said in got, (fields, got)
    # Cut short, with the client's side closed.
    for data in (b"", b"G", get, post(b"{}")[:-1], chunked + b"\r\n", chunked + b"\r\n5\r\n{", post(b"x" * 100)[:-50]):
        assert all(status in REFUSED for status in exchange(server.port, data, half_close=True)), data[-50:]
    # What a client may do, though few do.
    end = b"Connection: close\r\n\r\n"
    assert exchange(server.port, get + end) == [200]
    assert exchange(server.port, get + b"\r\n", half_close=True) == [200]
    assert exchange(server.port, b"GET http://x/health HTTP/1.1\r\nHost: localhost\r\n" + end) == [200]
    assert exchange(server.port, get + b"Upgrade: websocket\r\nConnection: upgrade, close\r\n\r\n") == [200]
    assert exchange(server.port, (get + b"\r\n") * 100 + get + end) == [200] * 101
    assert exchange(server.port, (post(completion()) + get + b"\r\n") * 5 + get + end) == [200] * 11
    assert exchange(server.port, post(completion(), fields=b"Expect: 100-continue\r\nConnection: close\r\n")) == [100, 200]
    assert exchange(server.port, chunked + b"Connection: close\r\n\r\n%x;a=b\r\n%b\r\n0\r\nX: y\r\n\r\n" % (
        len(completion()), completion())) == [200]
    for method in ("TRACE", "CONNECT", "OPTIONS", "DELETE", "PATCH", "FOO"):
        for target in ("/health", "*", "x:443", COMPLETIONS):
            status = exchange(server.port, f"{method} {target} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            assert status in ([404], [405], [400]), (method, target, status)


def check_paths(server):
    for path in ("/%2e%2e/%2e%2e/etc/passwd", "/../../etc/passwd", "//", "//health", "/health/", "/health/..", "/./health",
                 "/v1//models", "/v1/models/../models", "/%68ealth", "/health%00", "/health;x", "/HEALTH", "/" + "a/" * 4000,
                 "/v1/sessions/../../etc/passwd", "/v1/sessions/%2e%2e%2f%2e%2e%2fetc%2fpasswd", "/v1/sessions/%00",
                 "/v1/sessions/..", "/v1/sessions/" + "a" * 8000, "/\xff\xfe", "/?", "/#", "?", "*", "\\..\\.."):
        data = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode("latin-1")
        statuses = exchange(server.port, data)
        assert statuses in ([400], [404], [405]) or path in ("/?", "/#"), (path[:60], statuses)


MALFORMED = [
    b"", b"{", b"}", b"[]", b"null", b"1", b'"x"', b"{} {}", b"{}x", b"{'a':1}", b'{"a":1,}', b'{"a" 1}', b'{"prompt":NaN}',
    b'{"prompt":"x","temperature":NaN}', b'{"prompt":"x","temperature":Infinity}', b'{"prompt":"x","temperature":1e999}',
    b'{"prompt":"x","max_tokens":1e999}', b'{"prompt":"\\ud800"}', b'{"prompt":"\\udc00\\ud800"}', b'{"prompt":"\\x41"}',
    b'{"prompt":"\xff"}', b'{"prompt":"\xed\xa0\x80"}', b'{"prompt":"\xc0\x80"}', b'{"prompt":"\xf4\x90\x80\x80"}',
    b'{"\xff":1}', b'{"prompt":"\x00"}', b'{"prompt":"\n"}', b"\xef\xbb\xbf", b"\xff\xfe{\x00}\x00", b"[" * 1000000,
    b'{"a":' * 1000000, b'{"a":' + b"[" * 70 + b"]" * 70 + b"}", b'{"prompt":"' + b"x" * 1000000, b"\x1f\x8b\x08" + bytes(100)]

ABSURD = [
    ("max_tokens", [-1, -(2**63), 2**63, 2**64, 10**400, 1.5, "5", True, [], {}, 1e30]),
    ("temperature", [-1, 1e38, 1e308, "1", [], True, 101]), ("top_p", [0, -1, 2, "x", 1e308]), ("min_p", [-1, 2]),
    ("top_k", [-2, 2**63, 1.5, "x"]), ("seed", [2**64, 1.5, "x", -(2**70), [1]]), ("n", [0, -1, 65, 2**40, 1.5, "2"]),
    ("logprobs", [-1, 101, 10**9, True, "x"]), ("frequency_penalty", [11, -11, 1e300]), ("presence_penalty", [11, "x"]),
    ("repetition_penalty", [0, -1, 1e30]), ("stop", ["", [""], [1], {}, ["x"] * 1000000, [["x"]], 5]),
    ("stream", ["yes", 1, []]), ("stream_options", [5, "x", {"include_usage": 1}]), ("model", [5, []]),
    ("prompt", [None, "", [], {}, 5, True, [2**31], [-1], [1.5], [2**63], [10**9], ["a", 1], [None], [[[1]]], ["a"] * 10000]),
    ("kv", [5, "x", [], {"policy": 5}, {"policy": "x" * 1000000}, {"policy": "nosuch"}, {"policy": "streaming:window=-1"},
            {"policy": "streaming:window=99999999999999999999"}, {"policy": "streaming:window=nan"},
            {"policy": "h2o:" + "a=1," * 10000}, {"policy": "+" * 1000}, {"policy": "full+full+full"}, {"policy": "\0"}]),
    ("min_tokens", [-1, 10**9, "x", 1.5]), ("stop_token_ids", [5, [-1], [2**31], [1.5], ["x"], [1] * 100000, {}]),
    ("allowed_token_ids", [[], [-1], [10**9], list(range(70000)), "x"]), ("bad_words", ["x", [""], [5], ["x" * 10**6], ["x"] * 10**6]),
    ("prompt_logprobs", [-1, 101, True]), ("truncate_prompt_tokens", [0, -2, 2**63, "x"]), ("truncation_side", ["up", 5]),
    ("typical_p", [0, 2, "x"]), ("xtc_probability", [-1, 2]), ("top_n_sigma", [101, 1e308]), ("dynatemp_range", [-1, 101]),
    ("repeat_last_n", [-2, 2**40, "x"]), ("dry_base", [0, 1e30]), ("logit_bias", [{"x": 1}, {"1": "x"}, [[1, 2]]]),
    ("metadata", [5, {"a": 1}, {"a": "x" * 10**6}]), ("chat_template", ["{{ x }}", "{% for i in range(10**9) %}{% endfor %}"]),
    ("tools", [[{}]]), ("suffix", ["x"]), ("response_format", [5, {}, {"type": 5}, {"type": "json_schema", "json_schema": 5}, {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}},
                         {"type": "json_schema", "json_schema": {"schema": {"not": {}}}}, {"type": "json_schema", "json_schema": {"schema": False}}]),
    ("guided_regex", [5, "(", "(" * 1000, "a{99999}", "((a{1000}){1000}){1000}", "(?=a)", "[", "\\", "a" * 10**5]),
    ("guided_grammar", [5, "root", "root ::= root", "root ::= x", "root ::= ((", "x ::= \"a\"", "root ::= [" * 1000, "root ::= \"a\"{9999}{9999}"]),
    ("guided_choice", [5, [], [5], [""], ["a"] * 20000]),
    ("guided_json", [5, {"$ref": "#/x"}, {"$ref": "http://x"}, {"type": "string", "pattern": "("}, {"enum": []},
                     {"minItems": 10**9}, {"type": "integer", "minimum": 5, "maximum": 4}, {"properties": 5}, {"required": [5]}])]

# These may be answered; what counts is that they do no harm.
STRANGE = [
    {"seed": -1}, {"seed": 2**64 - 1}, {"seed": 5.0}, {"max_tokens": 0}, {"stop": ["x" * 100000] * 16}, {"prompt": "\0\0\0"},
    {"prompt": "\u202e\U0010ffff\ufeff"}, {"prompt": "<|im_start|><s></s>" * 100}, {"user": "x" * 1000000},
    {"prompt": "a" * 3000, "stop": ["a" * 3000]}, {"temperature": 1e-45}, {"temperature": 100, "top_k": 1}, {"n": 64},
    {"bad_words": ["a " * 128] * 128}, {"truncate_prompt_tokens": 1}, {"truncate_prompt_tokens": -1},
    {"allowed_token_ids": [2], "min_tokens": 1}, {"\r\nSet-Cookie: a=1": 1, "\0": 2, "x" * 100000: 3},
    {"logit_bias": {"1": 1e308}}, {"model": "x" * 1000000}, {"unknown": [[[]]] * 100000}, {"priority": 2**62},
    {"temperature": -0.0, "top_p": 1e-45}, {"top_k": 2**30, "temperature": 1}, {"logprobs": 20, "max_tokens": 20}, {"prompt": ["a", "b"]}, {"prompt": [[1], [2]]}]


def check_bodies(server):
    for body in MALFORMED:
        for path in (COMPLETIONS, "/v1/chat/completions"):
            status, _, text = server.ask("POST", path, body)
            assert status == 400 and json.loads(text)["error"]["message"], (body[:50], status)
            assert len(text) < 2000, (body[:50], len(text))
    for field, values in ABSURD:
        for value in values:
            status, _, text = server.ask("POST", COMPLETIONS, completion(**{field: value}))
            assert status in (400, 413), (field, str(value)[:50], status, text[:300])
            assert json.loads(text)["error"]["message"] and len(text) < 4000, (field, str(value)[:50], len(text))
    for fields in STRANGE:
        status, _, text = server.ask("POST", COMPLETIONS, completion(**fields))
        assert status in (200, 400, 404) and json.loads(text) and (status == 200 or len(text) < 4000), (str(fields)[:50], status)
    for messages in ([{"role": "user", "content": "x"}] * 10001, [[]], ["x"], [{"role": "\0", "content": {}}], [{}], "x", {},
                     [{"role": "user", "content": [{"type": "text", "text": 5}]}], [{"role": "user", "content": 5}]):
        status = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 1})[0]
        assert status == 400, (str(messages)[:50], status)


def check_large(server):
    """Bodies of 100 MB, with a length and in chunks."""
    piece = b"x" * (1 << 20)
    assert exchange(server.port, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 104857600\r\n\r\n" + piece) == [413]
    raw = Raw(server.port)
    raw.send(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    sent = 0
    try:
        while sent < 100:
            raw.socket.sendall(b"%x\r\n%b\r\n" % (len(piece), piece))
            sent += 1
    except OSError:
        pass
    assert sent < 100, "the server read 100 MB"
    with contextlib.suppress(ConnectionError):
        assert b" 413 " in (raw.read() or b" 413 ")
    # As large as the server takes: many values, and one long one.
    many = b'{"kv":{"policy":"full"},"prompt":[' + b"1," * (4 << 20)
    for body in (many[:8 << 20], many[:(8 << 20) - 4] + b"1]}", b'{"prompt":"' + b"\\u0041" * (1 << 20) + b'","n":0}',
                 b"{" + b",".join(b'"%d":{}' % i for i in range(500000)) + b"}"):
        status = server.ask("POST", COMPLETIONS, body[:8 << 20])[0]
        assert status in (400, 413), (body[:30], status)


class Polite:
    """Another client, in a process of its own: python hostile_check.py --polite PORT

    It asks one thing after the other, and writes a line for each: what, when it began and ended, the status, and how often
    its connection was closed without an answer. A flood may close one whose request has not come yet: then it connects
    again, as clients do."""

    def __init__(self, server):
        self.process = subprocess.Popen([sys.executable, __file__, "--polite", str(server.port)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.asked = []
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            self.asked.append(json.loads(line))

    def within(self, began, ended=float("inf")):
        """The requests of each kind that were sent and answered in this time, on which all processes agree."""
        found = {"health": [], "completion": []}
        for each in list(self.asked):
            if began <= each["began"] and each["ended"] <= ended:
                found[each["what"]].append(each)
        return found

    def end(self):
        self.process.stdin.close()
        self.thread.join()
        assert self.process.wait() == 0

    @staticmethod
    def ask(port, method, path, body):
        """Returns the status, and the number of connections that were closed before there was one."""
        for closed in range(5):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=120, source_address=("127.0.0.99", 0))
            try:
                connection.request(method, path, body)
                answer = connection.getresponse()
                answer.read()
                return answer.status, closed
            except (ConnectionError, http.client.HTTPException):
                pass
            finally:
                connection.close()
        return 0, 5

    @staticmethod
    def run(port):
        stop = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), stop.set()), daemon=True).start()
        while not stop.is_set():
            for name, method, path, body in (("health", "GET", "/health", None), ("completion", "POST", COMPLETIONS, completion())):
                began = time.monotonic()
                status, closed = Polite.ask(port, method, path, body)
                print(json.dumps({"what": name, "began": began, "ended": time.monotonic(), "status": status, "closed": closed}),
                      flush=True)
            time.sleep(0.02)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def meanwhile(server, quiet, name, attack, strict=False):
    """Attacks until another client has had its requests answered during that; strict: they take hardly longer than `quiet`."""
    polite = Polite(server)
    try:
        began = time.monotonic()
        for _ in range(100):
            attack()
            if min(map(len, polite.within(began).values())) >= POLITE:
                break
        ended = time.monotonic()
    finally:
        polite.end()
    for each in polite.asked:
        assert each["status"] == 200, f"{name}: {each}"
    seen = {}
    for what, during in polite.within(began, ended).items():
        assert len(during) >= POLITE, f"{name}: {len(during)} {what} requests were answered"
        values = seen[what] = [each["ended"] - each["began"] for each in during]
        closed = sum(each["closed"] for each in during)
        p50, p99 = percentile(values, 0.5), percentile(values, 0.99)
        print(f"  {name}: {what} p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms, of {len(values)}, {closed} connections closed",
              flush=True)
        assert closed == 0 or name == "flood", f"{name}: a connection of another client was closed"
        if strict:
            assert p50 <= MOST_P50 and p99 <= MOST_P99 and closed == 0, f"{name}: {what} requests wait too long"
            if quiet:
                assert p50 <= 3 * percentile(quiet[what], 0.5) + 0.1, f"{name}: half of the {what} requests wait"
                assert p99 <= 3 * percentile(quiet[what], 0.99) + 0.5, f"{name}: some {what} requests wait long"
    return seen


def slow(server, seconds):
    """Headers and bodies that come byte by byte, until the server has closed them all; and streams that nobody reads."""
    tools = []
    if shutil.which("slowhttptest"):
        url = f"http://127.0.0.1:{server.port}{COMPLETIONS}"
        for kind in (["-H"], ["-B", "-s", "100000"], ["-X", "-w", "1", "-y", "2", "-n", "1", "-z", "1", "-k", "3"]):
            tools.append(subprocess.Popen(["slowhttptest", *kind, "-c", "100", "-i", "1", "-r", "100", "-l", str(seconds), "-p", "3",
                                           "-u", url], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
    else:
        print("  slowhttptest is not installed")
    held = []
    for i in range(300):
        raw = Raw(server.port, f"127.0.1.{i % 3 + 1}")
        raw.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " if i % 2 else
                 b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n")
        held.append(raw)
    readers = []
    for i in range(4):
        raw = Raw(server.port, "127.0.1.9")
        raw.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        raw.send(post(completion(max_tokens=100000, ignore_eos=True, stream=True, kv={"policy": "streaming:window=252"})))
        readers.append(raw)
    still = held
    for rounds in range(300):  # its limits are 10 s and less
        still = [raw for raw in still if not raw.closed()]
        if not still and rounds >= seconds:
            break
        for raw in still:
            raw.send(b"x")
        time.sleep(1)
    assert not still, f"{len(still)} of {len(held)} slow clients are still served"
    for raw in held:
        raw.close()
    for raw in readers:
        raw.close()
    for tool in tools:
        tool.wait(600)


def flood(server):
    """10,000 connections that say nothing, or the start of a request."""
    opened = []
    for i in range(10000):
        one = socket.socket()
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")  # close() leaves nothing behind
        one.settimeout(5)
        try:
            one.bind((f"127.0.2.{i % 50 + 1}", 0))
            one.connect(("127.0.0.1", server.port))
            if i % 2:
                one.send(b"GET /he")
        except OSError:
            one.close()
            continue
        opened.append(one)
    for one in opened:
        one.setblocking(False)

    def is_open(one):
        try:
            while one.recv(65536):
                pass
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False

    for _ in range(600):  # until the server has taken those that wait in the kernel
        open_now = sum(map(is_open, opened))
        if open_now <= CONNECTIONS:
            break
        time.sleep(0.1)
    print(f"  {len(opened)} of 10000 connections were made, {open_now} are open", flush=True)
    assert len(opened) > CONNECTIONS and 0 < open_now <= CONNECTIONS
    assert len(os.listdir(f"/proc/{server.process.pid}/fd")) < CONNECTIONS + 128
    for one in opened:
        one.close()


def garbage(server):
    """Refused requests as fast as they go."""
    end = time.monotonic() + 3
    while time.monotonic() < end:
        for data in (b"\x16\x03\x01\r\n\r\n", post(b"{"), post(b"[" * 100000), b"GET /" + b"x" * 20000, post(completion(n=0))):
            raw = Raw(server.port)
            raw.send(data)
            raw.close()


def check_descriptors(kvasir, model):
    """Without descriptors to spare the server neither ends nor spins, and serves when there are some again."""
    server = Server(kvasir, model, before=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100)))
    try:
        held = [Raw(server.port, f"127.0.0.{i % 9 + 1}") for i in range(300)]
        for _ in range(30):  # one second in which it does next to nothing: who spins has none
            cpu = server.cpu_seconds()
            time.sleep(1)
            if server.cpu_seconds() - cpu < 0.05:
                break
        else:
            raise AssertionError("the server spins")
        for raw in held:
            raw.close()
        assert server.ask("GET", "/health")[0] == 200
        assert server.end() == 0
    finally:
        server.process.kill()


class Watched(Server):
    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10

    def text(self):
        status, got = self.post(COMPLETIONS, {"prompt": "Once upon a time", "max_tokens": 20, "temperature": 0})
        assert status == 200, got
        return got["choices"][0]["text"]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvasir", nargs="?")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--seconds", type=int, default=14, help="of slow clients")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--polite", type=int)
    options = parser.parse_args()
    if options.polite:
        return Polite.run(options.polite)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    server = Watched(options.kvasir, options.model, "--kv-memory", "32MiB")  # which cached prefixes may fill
    try:
        text = server.text()
        quiet = meanwhile(server, None, "quiet", lambda: time.sleep(3))
        resident = server.resident()
        began = time.monotonic()

        def done(name):
            nonlocal began
            assert server.process.poll() is None, f"{name}: the server ended"
            assert server.text() == text, f"{name}: another answer"
            print(f"{name}: {time.monotonic() - began:.1f} s, resident {server.resident() >> 20} MiB of {resident >> 20}", flush=True)
            began = time.monotonic()

        for check in (check_http, check_paths, check_bodies):
            check(server)
            done(check.__name__)
        for attack in (check_large, garbage, flood):
            meanwhile(server, quiet, attack.__name__, lambda: attack(server), options.strict)
            done(attack.__name__)
        meanwhile(server, quiet, "slow", lambda: slow(server, options.seconds), options.strict)
        done("slow")
        assert server.resident() < resident + (96 << 20), "memory does not return"
        assert server.end() == 0
        check_descriptors(options.kvasir, options.model)
        print("without descriptors: serves again")
    finally:
        server.process.kill()


if __name__ == "__main__":
    main()
