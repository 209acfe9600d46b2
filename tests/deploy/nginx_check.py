"""Two replicas behind nginx with the configuration of deploy/nginx: nginx_check.py KVASIR MODEL

nginx is Debian's, with its njs module; without them the check is skipped (77). Of the configuration only addresses and
the script's path are changed.
"""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))

from ports import free_port, wait_for_port

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "nginx")
MODULE = "/usr/lib/nginx/modules/ngx_http_js_module.so"
# Nothing stays behind where a check is killed. Above what ctest gives a check.
ENDS = ("timeout", "--foreground", "900")
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
# With --admission reserve a request that may come to 8,000 tokens under LARGE reserves more than half of the KV memory:
# a second one waits until the first has ended.
KV_MEMORY, LARGE = "32MiB", {"policy": "streaming:cap=8000"}


class Replica:
    def __init__(self, kvasir, model, sessions):
        self.command = [*ENDS, kvasir, "serve", "-m", model, "--name", "m", "--drain", "600", "--kv-memory", KV_MEMORY,
                        "--admission", "reserve", "--max-unread", "1GiB", "--sessions", sessions, "--port"]
        self.port = free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen([*self.command, str(self.port)], stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        wait_for_port(self.process, self.port, "a replica")

    def child(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            return int(children.read().split()[0])

    def requests(self, state):
        """The number of requests that are "running" or "waiting"; asks the replica itself."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("GET", "/metrics")
        text = connection.getresponse().read().decode()
        connection.close()
        return int(float(re.search(rf"^kvasir:num_requests_{state}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1]))

    def accepts(self):
        try:
            socket.create_connection(("127.0.0.1", self.port), 60).close()
            return True
        except ConnectionRefusedError:
            return False

    def kill(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Proxy:
    def __init__(self, folder, replicas):
        self.port = free_port()
        self.folder = folder
        self.asked = 0
        with open(os.path.join(SOURCE, "kvasir.conf")) as file:
            config = file.read()
        shutil.copy(os.path.join(SOURCE, "kvasir_route.js"), folder)
        for old, new in (("/etc/nginx/kvasir_route.js", f"{folder}/kvasir_route.js"),
                         ("127.0.0.1:8081", f"127.0.0.1:{replicas[0].port}"),
                         ("127.0.0.1:8082", f"127.0.0.1:{replicas[1].port}"),
                         ("127.0.0.1:8000", f"127.0.0.1:{self.port}")):
            assert old in config, old
            config = config.replace(old, new)
        temporary = "".join(f"{name}_temp_path {folder}/{name};" for name in
                            ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
        user = "user root;" if os.getuid() == 0 else ""
        with open(f"{folder}/nginx.conf", "w") as file:
            file.write(f"""{user} load_module {MODULE}; daemon off; pid {folder}/pid; error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{ {temporary}
log_format where '$http_x_check_number $request_uri $status $upstream_addr';
access_log {folder}/access.log where;
{config} }}""")
        self.process = subprocess.Popen([*ENDS, NGINX, "-p", folder, "-c",
                                         f"{folder}/nginx.conf", "-e", f"{folder}/error.log"])
        wait_for_port(self.process, self.port, "nginx")

    def ask(self, method, path, body=None, headers=None):
        """Sends a request, again where this address has sent too many: nginx lets 20 a second pass."""
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        for _ in range(20):
            self.asked += 1
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            connection.request(method, path, data, {"X-Check-Number": str(self.asked), **(headers or {})})
            answer = connection.getresponse()
            text = answer.read()
            connection.close()
            if answer.status != 429:
                break
            time.sleep(0.5)
        return answer.status, dict(answer.getheaders()), text

    def where(self):
        """The replicas that the newest request of ask() was sent to, in turn; nginx logs it once it is over."""
        for _ in range(200):
            with open(f"{self.folder}/access.log") as file:
                for line in file:
                    if line.startswith(f"{self.asked} ") and line.endswith("\n"):
                        return [int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", line)]
            time.sleep(0.01)
        raise AssertionError("nginx has not logged the request")

    def complete(self, prompt, headers=None, **fields):
        """Returns the answer and the port of the replica that gave it."""
        status, _, text = self.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 4, "temperature": 0,
                                                               **fields}, headers)
        assert status == 200, (status, text)
        return json.loads(text), self.where()[-1]

    def end(self):
        self.process.terminate()
        self.process.wait(20)


class Stream:
    """A stream whose headers have come."""

    def __init__(self, proxy, **body):
        self.connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=600)
        self.connection.request("POST", "/v1/completions", json.dumps({"stream": True, "ignore_eos": True, **body}))
        self.answer = self.connection.getresponse()
        assert self.answer.status == 200, self.answer.read()
        assert self.answer.getheader("Content-Type").startswith("text/event-stream")

    def close(self):
        self.answer.close()
        self.connection.close()


class Endless(Stream):
    """An answer without end, which a thread reads until leave()."""

    def __init__(self, proxy, prompt, kv):
        super().__init__(proxy, prompt=prompt, max_tokens=10**9, kv=kv)
        self.pieces, self.left, self.failure = 0, False, None
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()
        self.goes_on()

    def read(self):
        while not self.left:
            piece = self.answer.read1(65536)
            if not piece or b'"error"' in piece or b"[DONE]" in piece:
                self.failure = piece
                return
            self.pieces += 1
        self.close()

    def goes_on(self):
        """Waits for pieces that were not there before."""
        more = self.pieces + 20
        wait_for(lambda: self.pieces >= more or self.failure is not None, "an answer without end stands still")
        assert self.failure is None, f"an answer without end has ended: {self.failure[-300:]}"

    def leave(self):
        self.left = True
        self.thread.join(600)
        assert not self.thread.is_alive() and self.failure is None, self.failure


def wait_for(holds, what):
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError(what)


def story(number):
    return f"Story number {number}: once upon a time there was a fox who lived in a dark forest. " * 5


def check_prefixes(proxy, replicas):
    """Conversations stay with a replica, which finds their tokens; together they use both."""
    used = {}
    for number in range(8):
        messages = [{"role": "system", "content": "You tell stories. " * 10},
                    {"role": "user", "content": story(number)}]
        for turn in range(2):
            status, _, text = proxy.ask("POST", "/v1/chat/completions", {"messages": messages, "max_tokens": 8,
                                                                        "temperature": 0})
            answer = json.loads(text)
            assert status == 200, answer
            port = proxy.where()[-1]
            if turn == 0:
                used[number] = port
            else:
                assert port == used[number] and answer["kv"]["cached"] > 100, (number, answer["kv"])
            messages += [{"role": "assistant", "content": answer["choices"][0]["message"]["content"]},
                         {"role": "user", "content": "And then?"}]
    assert set(used.values()) == {replica.port for replica in replicas}, used
    # A prompt longer than what is compared stays where it was as it grows.
    long = story(1) * 8
    first, port = proxy.complete(long)
    again, same = proxy.complete(long + "The end.")
    assert port == same and again["kv"]["cached"] > first["usage"]["prompt_tokens"] - 40, again["kv"]
    # What the client names decides alone; callers are apart.
    assert len({proxy.complete(story(n), {"X-Prefix-Key": "mine"})[1] for n in range(8)}) == 1
    ports = [proxy.complete("x", {"X-Prefix-Key": "mine", "Authorization": f"Bearer {n}"})[1] for n in range(12)]
    assert set(ports) == {replica.port for replica in replicas}, ports


def held_answer(proxy, replicas, prompt):
    """An endless answer, and one on the same replica that begins and then waits until the endless one's client leaves.

    Returns both, the replica, and what has come of the one that waits."""
    endless = Endless(proxy, prompt, LARGE)
    held = Stream(proxy, prompt=prompt, max_tokens=8000, stop=["."], temperature=0, kv=LARGE)
    text = b""
    while b"\n\n" not in text:
        piece = held.answer.read1(65536)
        assert piece, text
        text += piece
    wait_for(lambda: sum(replica.requests("waiting") for replica in replicas) == 1, "nothing waits")
    replica = next(replica for replica in replicas if replica.requests("waiting") == 1)
    assert [each.requests("running") for each in replicas] == [int(each is replica) for each in replicas]
    return endless, held, replica, text


def check_whole(held, text):
    """Reads what is left of a held answer."""
    while piece := held.answer.read1(65536):
        text += piece
    assert text.endswith(b"data: [DONE]\n\n") and re.search(rb'"finish_reason":"(stop|length)"', text), text[-300:]
    assert text.count(b"data: ") > 5, text
    held.close()


def check_stream(proxy, replicas):
    """Pieces of a stream come as they are made; a client that leaves frees its replica."""
    endless, held, replica, text = held_answer(proxy, replicas, story(0))
    # A proxy that collects pieces would have kept the first one, and nothing more is made.
    assert text.count(b"data: ") == 1 and len(text) < 1000, text
    endless.goes_on()
    assert replica.requests("waiting") == 1, "the held answer went on beside the endless one: nothing was shown"
    endless.leave()
    check_whole(held, text)
    busy = [Endless(proxy, story(number), {"policy": "streaming:cap=64"}) for number in range(4)]
    wait_for(lambda: sum(replica.requests("running") for replica in replicas) == 4, "not all four run")
    for each in busy:
        each.leave()
    wait_for(lambda: all(replica.requests("running") == 0 for replica in replicas),
             "the replicas go on for clients that left")


def check_errors(proxy, _):
    assert proxy.ask("GET", "/v1/models")[0] == 200
    for body in (b"", b"{", b"[]", b"null", b'"x"', b"\xff\xfe", b'{"messages":[null]}', b'{"messages":{"a":1}}',
                 b'{"prompt":5}', b'{"messages":[{"role":5,"content":{}}]}'):
        status, _, text = proxy.ask("POST", "/v1/chat/completions", body)
        assert status == 400 and json.loads(text)["error"]["message"], (body, status, text)
    for path in ("/", "/metrics", "/nowhere", "/tokenizer"):
        status, _, text = proxy.ask("GET", path)
        assert status == 404 and "error" in json.loads(text), path
    status, _, text = proxy.ask("POST", "/v1/completions", b"x" * (9 << 20))
    assert status == 413 and "8 MiB" in json.loads(text)["error"]["message"]
    # As large as may be: still read and sent whole.
    status, _, text = proxy.ask("POST", "/v1/completions", {"prompt": "x", "max_tokens": 1, "more": "y" * (7 << 20)})
    assert status == 200, text


def check_sessions(proxy, replicas):
    """All requests of a session go to the replica that has its file."""
    where = {}
    for number in range(12):
        body = {"prompt": f"Once upon a time, {number}"}
        status, _, text = proxy.ask("POST", f"/v1/sessions/s{number}", body)
        assert status == 200, text
        where[number] = proxy.where()
        assert proxy.ask("GET", f"/v1/sessions/s{number}")[0] == 200 and proxy.where() == where[number]
        answer, port = proxy.complete(" there was", session=f"s{number}")
        assert [port] == where[number], (number, port, where)
    assert sorted(set(map(tuple, where.values()))) == sorted((replica.port,) for replica in replicas), where


def check_drain(proxy, replicas):
    """A replica goes down: the answer under way ends, new requests go to the other, and it is used again once back."""
    _, port = proxy.complete(story(3), max_tokens=2)
    leaving = next(replica for replica in replicas if replica.port == port)
    staying = next(replica for replica in replicas if replica.port != port)
    endless, held, busy, text = held_answer(proxy, replicas, story(3))
    assert busy is leaving
    os.kill(leaving.child(), signal.SIGTERM)
    wait_for(lambda: not leaving.accepts(), "the replica does not drain")
    for _ in range(4):
        assert proxy.complete(story(3))[1] == staying.port
        endless.goes_on()
    assert leaving.process.poll() is None, "the replica ended before its answers; nothing was shown"
    endless.leave()
    check_whole(held, text)
    assert leaving.process.wait(120) == 0
    assert proxy.complete(story(3))[1] == staying.port and proxy.ask("GET", "/ready")[0] == 200
    # A session does not move.
    names = {}
    for number in range(12):
        status, headers, text = proxy.ask("POST", f"/v1/sessions/s{number}", {"prompt": "x"})
        names[number] = proxy.where(), status
        assert len(names[number][0]) == 1, names
        if names[number][0] == [leaving.port]:
            assert status == 503 and headers["Retry-After"] and "error" in json.loads(text), text
        else:
            assert status == 200, text
    assert {tuple(where) for where, _ in names.values()} == {(leaving.port,), (staying.port,)}, names
    leaving.start()
    wait_for(lambda: proxy.complete(story(3))[1] == leaving.port, "the replica is not used again")


def check_dead(proxy, replicas):
    """A replica that dies is left out at once; without any the answer is 503."""
    _, port = proxy.complete(story(5))
    dead = next(replica for replica in replicas if replica.port == port)
    dead.kill()
    for _ in range(4):
        assert proxy.complete(story(5))[1] != port
    for replica in replicas:
        replica.kill()
    for path in ("/v1/completions", "/v1/sessions/a"):
        status, headers, text = proxy.ask("POST", path, {"prompt": "x"})
        assert status == 503 and headers["Retry-After"] and "error" in json.loads(text), text


def check_rate(proxy, _):
    """More than 20 requests a second (and 40 at once) of one address are refused."""
    one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n"
    began, passed, refused = time.monotonic(), 0, 0
    for _ in range(20):  # a machine on which 300 requests take longer than 13 s needs another round
        with socket.create_connection(("127.0.0.1", proxy.port), 600) as raw:
            raw.sendall((one + b"\r\n") * 299 + one + b"Connection: close\r\n\r\n")
            text = b""
            while piece := raw.recv(65536):
                text += piece
        took = time.monotonic() - began
        now = text.count(b"HTTP/1.1 429")
        passed, refused = passed + text.count(b"HTTP/1.1 200"), refused + now
        assert text.count(b"Retry-After: 1") == now and (now > 0) == (b"too many requests from this address" in text)
        if refused > 0:
            break
    assert (passed + refused) % 300 == 0 and 40 <= passed <= 41 + 20 * took and refused > 0, (passed, refused, took)
    time.sleep(1)


def main(kvasir, model):
    if NGINX is None or not os.path.exists(MODULE):
        print("skipped: nginx with njs is missing; install Debian's nginx and libnginx-mod-http-js")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        replicas = [Replica(kvasir, model, f"{folder}/sessions{number}") for number in range(2)]
        proxy = Proxy(folder, replicas)
        try:
            for check in (check_prefixes, check_stream, check_errors, check_sessions, check_drain, check_rate,
                          check_dead):
                began = time.time()
                time.sleep(2)  # at its rate, nginx then lets the whole burst pass again
                check(proxy, replicas)
                print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)
        except BaseException:
            print(open(f"{folder}/error.log").read()[-2000:])
            raise
        finally:
            proxy.end()
            for replica in replicas:
                replica.kill()


if __name__ == "__main__":
    main(*sys.argv[1:3])
