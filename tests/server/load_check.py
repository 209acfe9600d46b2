"""Many clients at once on little memory: load_check.py KVASIR MODEL [--seconds 15 | --minutes 10] [--clients 64] [--kill]

Clients of two tenants send requests of mixed lengths and policies, a third of them under a schema or with a tool that must be
called, and cancel, disconnect or read slowly at random. Every completed greedy answer must be that which the request has alone; nothing may be lost or mixed up; at the end the server
holds as many pages and as much memory as at the start. One tenant has more clients than it may have requests, and is
refused for that; the other is never refused. Meanwhile the keys file changes, and memory is planned and watched. With --kill the
server is killed under load: what was saved of sessions and usage before is there after a restart. With --strict, on a machine that
is otherwise idle, p99 inter-token latency is at most --slack times --max-itl, which the server is given; that fewer prompt tokens
join a pass under --max-itl is checked by metrics_check.py, in counts.
"""

import argparse
import contextlib
import http.client
import json
import os
import random
import re
import selectors
import signal
import socket
import struct
import subprocess
import tempfile
import threading
import time

from ports import free_port
from serve_check import Server

POLICIES = ("full", "streaming:sinks=4,window=252", "h2o:budget=128", "snapkv:budget=128+lethe:start=192,max=256")
# Three quarters of the clients are of the first, which exceeds its quota.
TENANTS = ("over", "under")
WORDS = "the old man saw a small dragon in the garden and it was very happy to play with Lily near the big red tree".split()


def some_text(rng, words):
    return "Once upon a time " + " ".join(rng.choice(WORDS) for _ in range(words))


SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "age"], "properties": {
    "name": {"type": "string", "maxLength": 30}, "age": {"type": "integer", "minimum": 0, "maximum": 120}}}
TOOL = {"type": "function", "function": {"name": "feed", "description": "Feeds an animal.", "parameters": SCHEMA}}


def constrained(request, tools):
    """The path and the body of a request whose answer must follow SCHEMA: as JSON, or as the arguments of a call."""
    if not tools:
        return "/v1/completions", {**request, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
    prompt = {"messages": [{"role": "user", "content": request.pop("prompt")}]}
    return "/v1/chat/completions", {**request, **prompt, "tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}


def text_of(part):
    """What a choice, or a part of one in a stream, says: its text, or its content and calls. The ids of calls are new each time."""
    if "text" in part:
        return part["text"]
    said = part.get("message") or part["delta"]
    calls = [call["function"] for call in said.get("tool_calls") or []]
    return (said.get("content") or "") + "".join((call.get("name") or "") + (call.get("arguments") or "") for call in calls)


def requests(count, policies, seed=1):
    """The requests, each with its path and what it has alone to be compared with."""
    rng = random.Random(seed)
    made = []
    for i in range(count):
        tokens = rng.choice((8, 20, 60, 150))
        request = {"prompt": some_text(rng, rng.choice((3, 30, 120, 400))), "max_tokens": tokens, "temperature": 0,
                   "stream": i % 5 > 1, "n": 2 if i % 8 == 7 else 1, "kv": {"policy": policies[i % len(policies)]},
                   "stream_options": {"include_usage": True}}
        made.append(constrained(request, i % 6 == 4) if i % 3 == 1 else ("/v1/completions", request))
    return made


def post(server, path, body, key=""):
    status, _, text = server.ask("POST", path, body, {"Authorization": "Bearer " + key} if key else None)
    return status, json.loads(text)


def solo_answers(server, made, key=""):
    answers = []
    for path, request in made:
        status, got = post(server, path, {**request, "stream": False}, key)
        assert status == 200, got
        answers.append({"texts": [text_of(choice) for choice in got["choices"]], "usage": got["usage"]["completion_tokens"],
                        "bytes": got["kv"]["bytes_peak"]})
    return answers


class Tenants:
    """A keys file with two tenants, and a usage database."""

    def __init__(self, kvasir, folder, clients, kv_bytes):
        self.kvasir, self.file, self.db = kvasir, folder + "/keys.toml", folder + "/usage.db"
        self.keys_command("tenant", "over", "--ceiling", f"{kv_bytes * 3 // 4 >> 10}KiB", "--concurrent", str(clients // 4))
        self.keys_command("tenant", "under", "--floor", f"{kv_bytes // 4 >> 10}KiB")
        self.keys = {name: self.keys_command("add", "--tenant", name).strip() for name in TENANTS}
        # The metrics have what requests hold; a key sees its own requests alone.
        self.serve = ["--api-keys", self.file, "--usage-db", self.db, "--metrics-open"]

    def keys_command(self, *arguments):
        return subprocess.run([self.kvasir, "keys", *arguments, "--api-keys", self.file], check=True, text=True,
                              capture_output=True).stdout

    def usage(self):
        done = subprocess.run([self.kvasir, "usage", "--db", self.db, "--json"], check=True, capture_output=True, text=True)
        return {row["tenant"]: row for row in json.loads(done.stdout)["usage"]}


class Others:
    """What goes on beside the load: keys come and go, and an operator asks for plans, the state of memory and the metrics."""

    def __init__(self, server, tenants):
        self.server, self.tenants, self.rounds, self.failure = server, tenants, 0, None
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def run(self):
        try:
            while not self.over.wait(0.2):
                self.round()
        except Exception as error:  # pylint: disable=broad-except
            self.failure = self.failure or repr(error)

    def round(self):
        key = self.tenants.keys_command("add", "--tenant", "under").strip()
        listed = json.loads(self.tenants.keys_command("list", "--json"))["keys"]
        headers = {"Authorization": "Bearer " + self.tenants.keys["under"]}
        for policy in POLICIES:
            status, got = post(self.server, "/v1/kv/plan", {"prompt_tokens": 500 + self.rounds, "max_tokens": 50,
                                                            "kv": {"policy": policy}}, self.tenants.keys["under"])
            assert status == 200, got
        for path in ("/metrics", "/v1/kv/state", "/v1/models"):
            status, _, text = self.server.ask("GET", path, headers=headers)
            assert status == 200, (path, text)
        # A new key counts within a second, and an old one no longer.
        self.wait_for_key(key, 200)
        self.tenants.keys_command("tenant", "under", "--requests-per-minute", str(100000 + self.rounds))
        self.tenants.keys_command("revoke", listed[-1]["id"])
        self.wait_for_key(key, 401)
        self.rounds += 1

    def wait_for_key(self, key, status):
        until = time.monotonic() + 300
        while (got := self.server.ask("GET", "/v1/models", headers={"Authorization": "Bearer " + key})[0]) != status:
            assert got in (200, 401) and time.monotonic() < until, (got, status)
            time.sleep(0.05)


class Client:
    """One client: sends a request, reads its answer or leaves, and sends the next."""

    def __init__(self, load, number):
        self.load, self.rng, self.socket = load, random.Random(number), None
        self.tenant = "under" if number % 4 == 3 else "over"
        self.begins_at = 0  # again, after a refusal
        self.begin()

    def begin(self):
        self.which = self.rng.randrange(len(self.load.made))
        path, request = self.load.made[self.which]
        self.stream, self.got, self.parsed = request["stream"], b"", 0
        self.texts, self.usage, self.finished, self.newest = [""] * request["n"], None, 0, None
        # What this client does: reads to the end, leaves after a while (in order, or by a reset), or reads slowly.
        self.manner = self.rng.choices(("read", "leave", "reset", "slow"), (70, 10, 10, 10))[0]
        self.leaves_at = time.monotonic() + self.rng.random() * self.rng.choice((0.05, 0.5, 3))
        self.next_read = 0
        self.socket = socket.socket()
        if self.manner == "slow":
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        self.socket.connect(("127.0.0.1", self.load.server.port))
        body = json.dumps(request).encode()
        self.socket.sendall(b"POST %b HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer %b\r\nConnection: close\r\n"
                            b"Content-Length: %d\r\n\r\n" % (path.encode(), self.load.tenants.keys[self.tenant].encode(), len(body)) + body)
        self.socket.setblocking(False)
        self.load.started += 1
        self.load.of[self.tenant]["started"] += 1
        self.load.selector.register(self.socket, selectors.EVENT_READ, self)

    def end(self, reset=False):
        self.load.selector.unregister(self.socket)
        if reset:
            self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()
        self.socket = None
        if self.begins_at <= time.monotonic() and self.load.goes_on():
            self.begin()

    def tick(self, now):
        if self.socket is None:
            if 0 < self.begins_at <= now and self.load.goes_on():
                self.begin()
            return
        if self.manner in ("leave", "reset") and now > self.leaves_at:
            self.load.left += 1
            self.end(self.manner == "reset")

    def readable(self, now):
        if self.manner == "slow":
            if now < self.next_read:
                return
            self.next_read = now + 0.05
        try:
            part = self.socket.recv(300 if self.manner == "slow" else 65536)
        except BlockingIOError:
            return
        except ConnectionError as error:
            self.load.fail(f"{self.manner}: {error} after {self.got[-200:]}")
            return self.end()
        self.got += part
        if self.stream:
            self.read_events(now)
        if not part:
            self.check()
            self.end()

    def read_events(self, now):
        while (end := self.got.find(b"\n\n", self.parsed)) >= 0:
            event, self.parsed = self.got[self.parsed:end], end + 2
            start = event.find(b"data: {")
            if start < 0:
                continue
            chunk = json.loads(event[start + 6:])
            if "error" in chunk:
                return self.load.fail(f"an error in a stream: {chunk}")
            if chunk.get("usage"):
                self.usage = chunk["usage"]["completion_tokens"]
            for choice in chunk["choices"]:
                said = text_of(choice)
                self.texts[choice["index"]] += said
                self.finished += choice["finish_reason"] is not None
                if said and choice["index"] == 0 and self.manner == "read":
                    if self.newest is not None:
                        self.load.gaps.append(now - self.newest)
                    self.newest = now

    def check(self):
        load, alone = self.load, self.load.alone[self.which]
        status = int(self.got[9:12] or 0)
        if status == 429 and b"at a time" in self.got:
            load.refused += 1
            load.of[self.tenant]["refused"] += 1
            self.begins_at = time.monotonic() + self.rng.uniform(0.2, 1)
            return
        if status != 200:
            return load.fail(f"status {status}: {self.got[-300:]}")
        if self.stream:
            if b"data: [DONE]" not in self.got or self.finished != len(self.texts):
                return load.fail(f"{self.manner}: a stream ends too early: {self.got[-300:]}")
            for preemptions in re.findall(rb'"preemptions":(\d+)', self.got):
                load.preempted += int(preemptions) > 0
        else:
            answer = json.loads(self.got.split(b"\r\n\r\n", 1)[1])
            self.texts = [text_of(choice) for choice in answer["choices"]]
            self.usage = answer["usage"]["completion_tokens"]
            load.preempted += answer["kv"].get("preemptions", 0) > 0
        if self.texts != alone["texts"] or self.usage != alone["usage"]:
            return load.fail(f"another answer to request {self.which}: {self.texts} for {alone['texts']}")
        load.completed += 1
        load.tokens += self.usage
        load.of[self.tenant]["completed"] += 1
        load.of[self.tenant]["tokens"] += self.usage


class Load:
    def __init__(self, server, tenants, made, alone, clients, seconds, least=0):
        self.server, self.tenants, self.made, self.alone = server, tenants, made, alone
        self.of = {name: {"started": 0, "completed": 0, "refused": 0, "tokens": 0} for name in TENANTS}
        self.started = self.completed = self.left = self.refused = self.tokens = self.preempted = 0
        self.gaps, self.failures = [], []
        self.selector = selectors.DefaultSelector()
        self.began = time.monotonic()
        self.until, self.least = self.began + seconds, least
        self.clients = [Client(self, i) for i in range(clients)]

    def goes_on(self):
        """Whether clients send more: until the time is over and, on a slow machine, so much was done."""
        done = [each["completed"] for each in self.of.values()]
        enough = self.completed >= self.least and (self.least == 0 or min(done) > 0 < self.of["over"]["refused"])
        return time.monotonic() < self.until or (not enough and self.started < 10000)

    def fail(self, what):
        self.failures.append(what)

    def run(self, stop=None):
        quiet_since = time.monotonic()
        while any(client.socket for client in self.clients):
            if stop is not None and stop():
                return
            events = self.selector.select(0.02)
            now = time.monotonic()
            if events:
                quiet_since = now
            if now - quiet_since > 300:
                return self.fail(f"{sum(client.socket is not None for client in self.clients)} answers do not come")
            for key, _ in events:
                key.data.readable(now)
            for client in self.clients:
                client.tick(now)
            if len(self.failures) > 3:
                return

    def report(self):
        seconds = time.monotonic() - self.began
        print(*(f"{name}: {figures}" for name, figures in self.of.items()), sep="\n")
        print(f"{self.started} requests in {seconds:.0f} s: {self.completed} completed and as alone, {self.left} left, {self.refused} "
              f"refused, {self.preempted} preempted; {self.tokens / seconds:.0f} tokens/s", flush=True)


def percentile(values, share):
    return sorted(values)[min(len(values) - 1, int(share * len(values)))] if values else 0


class Watched(Server):
    def resident(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) << 10

    def metric(self, name):
        status, _, text = self.ask("GET", "/metrics")
        assert status == 200, text
        return int(float(re.search(rf"^kvasir:{name}{{[^}}]*}} (\S+)$", text.decode(), re.MULTILINE)[1]))

    def pages(self):
        """Bytes of KV that requests hold."""
        # What cached prefixes need besides their pages counts as requests'.
        return max(0, self.metric("kv_request_bytes") - self.metric("kv_prefix_bytes") // 100)

    def preemptions(self):
        return self.metric("num_preemptions_total")

    def settles(self, read, good, seconds=300):
        """Whether a value becomes good."""
        end = time.monotonic() + seconds
        while not good(value := read()):
            if time.monotonic() > end:
                return value, False
            time.sleep(0.2)
        return value, True


def same(answers, others):
    return [(one["texts"], one["usage"]) for one in answers] == [(one["texts"], one["usage"]) for one in others]


def check_load(options, folder):
    made = requests(options.requests, options.policies.split(";"))
    server = Watched(options.kvasir, options.model, *options.serve)
    try:
        alone = solo_answers(server, made)
    finally:
        server.process.kill()
    # A quarter of what the clients want at once, and room for the largest.
    wanted = sum(one["bytes"] for one in alone) // len(alone) * options.clients
    kv_kib = options.kv_kib or max(wanted // 4, 2 * max(one["bytes"] for one in alone)) >> 10
    print(f"KV memory {kv_kib} KiB; {options.clients} clients want about {wanted >> 20} MiB", flush=True)
    tenants = Tenants(options.kvasir, folder, options.clients, kv_kib << 10)
    serve = ("--kv-memory", f"{kv_kib}KiB", "--max-itl", str(options.max_itl), *tenants.serve, "--sessions", folder + "/sessions", *options.serve)
    server = Watched(options.kvasir, options.model, *serve)
    try:
        # A first round warms the heap and the threads.
        warm = Load(server, tenants, made, alone, options.clients, 2)
        warm.run()
        resident, descriptors = server.resident(), len(os.listdir(f"/proc/{server.process.pid}/fd"))
        load = Load(server, tenants, made, alone, options.clients, options.seconds, options.clients // 2)
        with Others(server, tenants) as others:
            load.run()
        load.report()
        assert others.failure is None and others.rounds > 0, (others.failure, others.rounds)
        p50, p99 = percentile(load.gaps, 0.5), percentile(load.gaps, 0.99)
        print(f"inter-token latency: p50 {1000 * p50:.1f} ms, p99 {1000 * p99:.1f} ms", flush=True)
        for failure in load.failures:
            print("FAILED:", failure)
        assert server.process.poll() is None, f"the server ended with {server.process.poll()}"
        assert not load.failures
        assert load.completed >= options.clients // 2, "hardly anything was done"
        bound = options.slack * options.max_itl
        assert p99 <= bound or not options.strict, f"p99 is above {1000 * bound:.0f} ms, {options.slack} times --max-itl"
        assert load.of["over"]["refused"] > 0 and load.of["under"]["refused"] == 0, "only 'over' exceeds its quota"
        assert min(load.of[name]["completed"] for name in TENANTS) > 0
        pages, good = server.settles(server.pages, lambda value: value == 0)
        assert good, f"{pages} bytes of KV are held by nobody"
        print(f"KV bytes held by requests: {pages}; preemptions: {server.preemptions()}")
        _, good = server.settles(lambda: len(os.listdir(f"/proc/{server.process.pid}/fd")), lambda count: count <= descriptors + 2)
        assert good, "descriptors stay open"
        now = server.resident()
        print(f"resident: {now >> 20} MiB, at the start {resident >> 20}")
        assert now < resident + (options.leak_mb << 20), "memory does not return"
        # Nobody is served now: as quick as at the start, and the same.
        began = time.monotonic()
        assert same(solo_answers(server, made[:4], tenants.keys["under"]), alone[:4])
        print(f"4 requests after it: {time.monotonic() - began:.2f} s")
        for state in ("running", "waiting"):
            count, good = server.settles(lambda name=f"num_requests_{state}": server.metric(name), lambda value: value == 0)
            assert good, f"{count} requests are {state}, of nobody"
        for _ in range(30):  # one second in which it does next to nothing
            cpu = server.cpu_seconds()
            time.sleep(1)
            if server.cpu_seconds() - cpu < 0.05:
                break
        else:
            raise AssertionError("the server works for nobody")
        assert server.end() == 0
        check_usage(tenants.usage(), (warm, load), 4)
        if options.kill:
            check_kill(options, serve, tenants, made, alone)
    finally:
        server.process.kill()


def check_usage(usage, loads, extra):
    """Each tenant's usage has all requests that were answered, and no more than were sent; `extra` were sent besides."""
    for name in TENANTS:
        started, completed, refused, tokens = (sum(load.of[name][figure] for load in loads)
                                               for figure in ("started", "completed", "refused", "tokens"))
        row, more = usage[name], extra if name == "under" else 0
        # A client that leaves may be gone before its request was read.
        assert completed + more <= row["requests"] and refused <= row["refused"], (name, row, completed, refused)
        assert row["requests"] + row["refused"] <= started + more, (name, row, started)
        assert row["generated_tokens"] >= tokens, (name, row, tokens)


class Talker:
    """Continues one session again and again, until the server is gone."""

    def __init__(self, server, key):
        self.server, self.key, self.tokens, self.turns = server, key, 0, 0
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def run(self):
        with contextlib.suppress(OSError, http.client.HTTPException):
            while True:
                status, got = post(self.server, "/v1/completions", turn("busy", "And then"), self.key)
                assert status == 200, got
                self.tokens, self.turns = got["session"]["tokens"], self.turns + 1


def turn(session, prompt):
    return {"prompt": prompt, "session": session, "max_tokens": 20, "temperature": 0, "ignore_eos": True,
            "kv": {"policy": "streaming:sinks=4,window=252"}}


def check_kill(options, serve, tenants, made, alone):
    """kill -9 under load; a server that is started again on the same port serves, with the sessions and usage of before."""
    key = tenants.keys["under"]
    server = Watched(options.kvasir, options.model, *serve, port=free_port())
    try:
        assert post(server, "/v1/completions", turn("kept", "The old man"), key)[0] == 200
        talker = Talker(server, key)
        load = Load(server, tenants, made, alone, options.clients, 600)
        load.run(stop=lambda: time.monotonic() > load.began + 2 and talker.turns > 1)
        before = tenants.usage()
    finally:
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    talker.thread.join()
    again = Watched(options.kvasir, options.model, *serve, port=server.port)
    try:
        assert again.port == server.port and not load.failures and talker.turns > 1, (load.failures, talker.turns)
        assert same(solo_answers(again, made[:4], key), alone[:4])
        # The answer of the last turn that was saved may have been lost with the server.
        status, busy = post(again, "/v1/sessions/busy", {}, key)
        assert status == 200 and busy["session"]["tokens"] >= talker.tokens, (busy, talker.tokens)
        # What went on before the kill goes on as if there had been none.
        assert post(again, "/v1/completions", turn("fresh", "The old man"), key)[0] == 200
        texts = [post(again, "/v1/completions", turn(name, "The dragon"), key)[1]["choices"][0]["text"] for name in ("kept", "fresh")]
        assert texts[0] == texts[1], texts
        listed = json.loads(again.ask("GET", "/v1/sessions", headers={"Authorization": "Bearer " + key})[2])
        assert {each["id"] for each in listed["data"]} == {"kept", "busy", "fresh"}, listed
        assert again.end() == 0
        after = tenants.usage()
        for name in TENANTS:
            assert before[name]["requests"] > 0 and all(after[name][figure] >= count for figure, count in before[name].items()
                                                        if figure != "tenant"), (before, after)
        assert after["under"]["requests"] >= before["under"]["requests"] + 7, (before, after)
        print(f"serves again after kill -9: sessions are there, of {talker.turns} turns, and usage is")
    finally:
        again.process.kill()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("--seconds", type=float, default=15)
    parser.add_argument("--minutes", type=float)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=32, help="different ones")
    parser.add_argument("--policies", default=";".join(POLICIES), help="separated by ';'")
    parser.add_argument("--kv-kib", type=int, help="default: a quarter of what the clients' requests need at once")
    parser.add_argument("--max-itl", type=float, default=0.25, help="of the server, in seconds")
    parser.add_argument("--slack", type=float, default=4,
                        help="p99 inter-token latency may be this times --max-itl: other programs, and this one, use the machine too")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--leak-mb", type=int, default=32)
    parser.add_argument("--kill", action="store_true", help="kill -9 under load, and start again")
    parser.add_argument("--serve", nargs="*", default=[], help="more options of kvasir serve, such as --serve=--swap-dir=FOLDER")
    options = parser.parse_args()
    if options.minutes:
        options.seconds = 60 * options.minutes
    with tempfile.TemporaryDirectory() as folder:
        check_load(options, folder)


if __name__ == "__main__":
    main()
