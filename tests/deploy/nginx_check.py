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
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "server"))

from ports import free_port, wait_for_port

SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "deploy", "nginx")
MODULE = "/usr/lib/nginx/modules/ngx_http_js_module.so"
# Nothing stays behind where a check is killed. Above what ctest gives a check.
ENDS = ("timeout", "--foreground", "900")
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")


class Replica:
    def __init__(self, kvasir, model, sessions):
        self.command = [*ENDS, kvasir, "serve", "-m", model, "--name", "m", "--drain", "60",
                        "--sessions", sessions, "--port"]
        self.port = free_port()
        self.start()

    def start(self):
        self.process = subprocess.Popen([*self.command, str(self.port)], stderr=subprocess.DEVNULL,
                                        start_new_session=True)
        wait_for_port(self.process, self.port, "a replica")

    def child(self):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as children:
            return int(children.read().split()[0])

    def seconds(self):
        """Processor time that it has used."""
        with open(f"/proc/{self.child()}/stat") as stat:
            fields = stat.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

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


def check_stream(proxy, replicas):
    """Pieces of a stream come as they are made; a client that leaves frees its replica."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    began = time.time()
    connection.request("POST", "/v1/completions", json.dumps({"prompt": story(0), "max_tokens": 5000, "stream": True,
                                                              "ignore_eos": True}))
    answer = connection.getresponse()
    assert answer.status == 200 and answer.getheader("Content-Type").startswith("text/event-stream")
    times, text = [], b""
    while piece := answer.read1(65536):
        times.append(time.time() - began)
        text += piece
    assert text.endswith(b"data: [DONE]\n\n"), text[-100:]
    assert len(times) > 50 and times[0] < times[-1] / 4, (len(times), times[0], times[-1])
    late = sum(1 for each in times if each > times[-1] / 2)
    assert late > 10, (len(times), late)
    busy = {}
    for number in range(4):
        connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": story(number), "max_tokens": 100000,
                                                                  "stream": True, "ignore_eos": True}))
        busy[number] = connection.getresponse(), connection
        assert busy[number][0].read1(100)
    for answer, connection in busy.values():
        answer.close()
        connection.close()
    for _ in range(40):
        before = sum(replica.seconds() for replica in replicas)
        time.sleep(0.5)
        if sum(replica.seconds() for replica in replicas) - before < 0.1:
            break
    else:
        raise AssertionError("the replicas go on for clients that left")


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
    first, port = proxy.complete(story(3), max_tokens=2)
    leaving = next(replica for replica in replicas if replica.port == port)
    staying = next(replica for replica in replicas if replica.port != port)
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=60)
    connection.request("POST", "/v1/completions", json.dumps({"prompt": story(3), "max_tokens": 20000, "stream": True,
                                                              "ignore_eos": True}))
    answer = connection.getresponse()
    text = answer.read1(100)
    os.kill(leaving.child(), signal.SIGTERM)
    time.sleep(0.5)
    under_way = leaving.process.poll() is None
    for _ in range(4):
        assert proxy.complete(story(3))[1] == staying.port
    while piece := answer.read1(65536):
        text += piece
    assert text.endswith(b"data: [DONE]\n\n"), text[-200:]
    assert under_way, "the answer was over before the replica drained; nothing was shown"
    assert leaving.process.wait(30) == 0
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
    for _ in range(40):
        if proxy.complete(story(3))[1] == leaving.port:
            return
        time.sleep(0.5)
    raise AssertionError("the replica is not used again")


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
    with socket.create_connection(("127.0.0.1", proxy.port), 60) as raw:
        raw.sendall((one + b"\r\n") * 299 + one + b"Connection: close\r\n\r\n")
        text = b""
        while piece := raw.recv(65536):
            text += piece
    passed, refused = text.count(b"HTTP/1.1 200"), text.count(b"HTTP/1.1 429")
    assert passed + refused == 300 and passed >= 40 and refused > 50, (passed, refused)
    assert text.count(b"Retry-After: 1") == refused and b"too many requests from this address" in text
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
