"""Named sessions of several tenants against the real program: sessions_check.py KVASIR MODEL

Sessions count for their tenant's ceiling and leave another's floor alone, a session that is deleted stays deleted whatever
was being written, and what finds no place is refused before anything is computed.
"""

import json
import os
import pathlib
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time

from live_server import LiveServer, wait_for

MIB = 1 << 20
TALE = "the old man saw a small dragon in the garden and it was very happy to play with Lily near the big red tree "


class Client:
    def __init__(self, server, key=None):
        self.server = server
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}

    def ask(self, method, path, body=None):
        status, headers, text = self.server.ask(method, path, body, self.headers)
        return status, headers, json.loads(text)

    def complete(self, **body):
        return self.ask("POST", "/v1/completions", {"temperature": 0, "ignore_eos": True, **body})


def check_quotas(kvasir, model, folder):
    """Tenant b continues twelve sessions at once, each within its ceiling; a's request within its floor has its answer."""
    keys = f"{folder}/keys.toml"

    def keys_command(*arguments):
        return subprocess.run([kvasir, "keys", *arguments, "--api-keys", keys], check=True, capture_output=True, text=True)

    keys_command("tenant", "a", "--floor", "8MiB")
    keys_command("tenant", "b", "--ceiling", "4MiB")
    secrets = [keys_command("add", "--tenant", name).stdout.split()[0] for name in ("a", "b")]
    with LiveServer(kvasir, model, "--kv-memory", "16MiB", "--prefix-memory", "0", "--sessions", f"{folder}/sessions",
                    "--api-keys", keys) as server:
        a, b = (Client(server, secret) for secret in secrets)
        wanted = {"prompt": "Once " + TALE * 12, "max_tokens": 300, "kv": {"policy": "full", "bypass": True}}
        status, _, alone = a.complete(**wanted)
        assert status == 200 and alone["usage"]["completion_tokens"] == 300, alone
        for number in range(12):
            status, _, got = b.ask("POST", f"/v1/sessions/s{number}", {"prompt": TALE * 7, "kv": {"policy": "full"}})
            assert status == 200, got
        size = got["session"]["kv_bytes"]
        assert 2 * size < 4 * MIB and 12 * size > 16 * MIB, f"sessions of {size} bytes: this shows nothing"
        answers, most = {}, 0

        def turn(number):
            answers[number] = b.complete(session=f"s{number}", prompt=" And then", max_tokens=60)

        turns = [threading.Thread(target=turn, args=(number,)) for number in range(12)]
        for each in turns:
            each.start()
        wait_for(lambda: b.ask("GET", "/v1/kv/state")[2]["memory"].get("used", 0) > 0 or len(answers) == 12)
        began = len(answers)
        status, _, got = a.complete(**wanted)
        assert began < 12, "all sessions had ended: this shows nothing"
        assert status == 200 and got["choices"] == alone["choices"], (status, got)
        while any(each.is_alive() for each in turns):
            memory = b.ask("GET", "/v1/kv/state")[2]["memory"]
            most = max(most, memory.get("used", 0))
            time.sleep(0.01)
        assert [answers[number][0] for number in range(12)] == [200] * 12, answers
        texts = {answers[number][2]["choices"][0]["text"] for number in range(12)}
        assert len(texts) == 1 and len(texts.pop()) > 0
        print(f"b's sessions held at most {most / MIB:.1f} MiB of its 4.0")
        assert server.end() == 0


def check_deletion(kvasir, model, folder):
    """Whoever leaves while a turn is being written leaves no file behind one that was deleted."""
    root = pathlib.Path(folder, "deleted")
    with LiveServer(kvasir, model, "--kv-memory", "64MiB", "--sessions", str(root)) as server:
        client = Client(server)
        again, unchanged = 0, 0
        for attempt in range(40):
            name = f"s{attempt}"
            status, _, got = client.ask("POST", f"/v1/sessions/{name}", {"prompt": TALE * 16, "kv": {"policy": "full"}})
            assert status == 200, got
            file = next(root.rglob(f"{name}.session"))
            before = file.stat().st_mtime_ns
            body = json.dumps({"prompt": " x", "session": name, "max_tokens": 1, "temperature": 0}).encode()
            with socket.create_connection(("127.0.0.1", server.port), 10) as raw:
                raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                # Until the turn is being written, or for a moment more and more.
                deadline = time.time() + 300
                while not list(root.rglob(f"{name}.session.new*")) and file.stat().st_mtime_ns == before and time.time() < deadline:
                    pass
                assert time.time() < deadline, "the turn was not written"
                time.sleep(attempt * 0.0002)
            status = client.ask("DELETE", f"/v1/sessions/{name}")[0]
            while status == 409:
                again += 1
                time.sleep(0.002)
                status = client.ask("DELETE", f"/v1/sessions/{name}")[0]
            assert status == 200, status
            time.sleep(0.05)
            left = list(root.rglob(f"{name}.session*"))
            assert not left, f"a session that was deleted is there again: {left}"
        print(f"deleted 40 sessions; {again} times one was still being written")
        assert server.end() == 0


def check_default_that_demotes(kvasir, model, folder):
    """Where the server's own policy demotes, a session that names none hears how it can be kept all the same."""
    root = pathlib.Path(folder, "default")
    with LiveServer(kvasir, model, "--kv-memory", "64MiB", "--sessions", str(root), "--kv", "streaming:cap=64",
                    "--demote", "q4") as server:
        client = Client(server)
        for body in ({}, {"kv": {}}):
            status, _, got = client.ask("POST", "/v1/sessions/tale", {"prompt": "x", **body})
            assert status == 400 and got["error"]["param"] is None, (status, got)
            assert '"kv":{"demote":"off"}' in got["error"]["message"], got
        status, _, got = client.ask("POST", "/v1/sessions/tale", {"prompt": "x", "kv": {"demote": "q4"}})
        assert status == 400 and got["error"]["param"] == "kv.demote", (status, got)
        status, _, got = client.ask("POST", "/v1/sessions/tale", {"prompt": "x", "kv": {"demote": "off"}})
        assert status == 200, (status, got)
        assert client.ask("POST", "/v1/sessions/tale", {"prompt": " y"})[0] == 200, "what there is keeps its policy"
        assert server.end() == 0


def check_refusals(kvasir, model, folder):
    """Limits are found before anything is computed, and are no context_length_exceeded."""
    root = pathlib.Path(folder, "limits")
    with LiveServer(kvasir, model, "--kv-memory", "64MiB", "--sessions", str(root)) as server:
        client = Client(server)

        def refused(path, body, param):
            status, _, got = client.ask("POST", path, body)
            assert status == 400 and got["error"]["param"] == param, (status, got)

        route, chat = "/v1/sessions/tale", "/v1/completions"
        for field, value in (("stream", True), ("n", 2), ("best_of", 2), ("echo", True), ("logprobs", 2),
                             ("max_tokens", 10), ("max_completion_tokens", 10)):
            refused(route, {"prompt": "x", field: value}, field)
        refused(route, {"prompt": "x", "session": "other"}, "session")
        refused(chat, {"prompt": ["x", "y"], "session": "tale"}, "prompt")
        # Session files hold nothing that is demoted.
        for kv, param in (({"policy": "streaming:cap=64", "demote": "q4"}, "kv.demote"), ({"demote": "q4"}, "kv.demote"),
                          ({"policy": "streaming:cap=64@demote=q4"}, "kv.policy"), ({"codec": "q9"}, "kv.codec")):
            refused(route, {"prompt": "x", "kv": kv}, param)
            refused(chat, {"prompt": "x", "session": "tale", "kv": kv}, param)
        assert client.ask("GET", route)[0] == 404
        status, _, got = client.ask("POST", route, {"prompt": "x", "stream": False, "n": 1, "max_tokens": 0})
        assert status == 200, got
        for field, value in (("policy", "full"), ("codec", "f16"), ("demote", "off")):
            refused(route, {"kv": {field: value}}, "kv." + field)
        assert client.ask("POST", route, {})[0] == 200
        refused(chat, {"prompt": "x", "session": "tale", "kv": {"pin": True}}, "kv.pin")
        refused(chat, {"prompt": "x", "session": "tale", "kv": {"ttl": 60}}, "kv.ttl")
        hints = {"protocol_version": "0.1", "actions": [{"action_id": "1", "action_type": "pin"}]}
        status, _, got = client.complete(prompt="x", session="tale", max_tokens=2, kv_hints=hints)
        assert status == 200 and got["kv_hints"]["actions"][0]["outcome"] == "no_op", got

        tale = next(root.rglob("tale.session"))
        for number in range(255):
            os.link(tale, tale.with_name(f"other{number}.session"))
        made = server.metric("kvasir:generation_tokens_total")
        status, _, got = client.complete(prompt="x", session="new", max_tokens=2000)
        assert status == 403 and got["error"]["code"] == "session_limit", (status, got)
        time.sleep(0.1)  # a text of metrics is given again for 20 ms
        assert server.metric("kvasir:generation_tokens_total") == made, "it was refused after its answer"
        assert client.complete(prompt="x", session="tale", max_tokens=2)[0] == 200, "one that exists goes on"
        # A sparse file of more bytes than a tenant may have.
        with open(tale.with_name("other1.session"), "r+b") as other:
            other.truncate(9 << 30)
        status, _, got = client.complete(prompt="x", session="tale", max_tokens=2000)
        assert status == 403 and got["error"]["code"] == "session_limit", (status, got)
        assert client.ask("POST", route, {})[0] == 200, "it can be looked at"
        assert server.end() == 0


def check_folder(kvasir, model, folder):
    """A folder is one server's; the log says why the server failed a request."""
    root = pathlib.Path(folder, "one")

    def start(place):
        done = subprocess.run([kvasir, "serve", "-m", model, "--port", "0", "--sessions", place], capture_output=True, text=True,
                              timeout=60)
        assert done.stderr.count("\n") == 1, done
        return done.returncode, done.stderr

    with LiveServer(kvasir, model, "--kv-memory", "64MiB", "--sessions", str(root)) as server:
        code, said = start(str(root))
        assert code == 1 and "another server uses the sessions" in said, (code, said)
        code, said = start(model)
        assert code == 2 and f"the folder '{model}'" in said, (code, said)
        client = Client(server)
        assert client.complete(prompt="x", session="tale", max_tokens=2)[0] == 200
        file = next(root.rglob("tale.session"))
        sound = file.read_bytes()
        # A client hears which session it is and what it can do about it, and nothing of files and options.
        mends = "; 'DELETE /v1/sessions/tale' removes it, and the next request makes a new one"
        for content, why in ((b"damaged", "its file is not a session file of Kvasir"),
                             (b"", "its file is not a session file of Kvasir"),
                             (sound[:-40], "its file is damaged: it ends in the middle"),
                             (sound[:200] + b"?" + sound[201:], "its file is damaged: a checksum is wrong")):
            file.write_bytes(content)
            for path, body in (("/v1/completions", {"prompt": "x", "session": "tale"}), ("/v1/sessions/tale", {})):
                status, _, got = client.ask("POST", path, body)
                assert status == 500 and got["error"]["param"] in ("session", None), (status, got)
                assert got["error"]["message"] == f"the session 'tale' cannot be restored: {why}{mends}", got
        assert client.ask("DELETE", "/v1/sessions/tale")[0] == 200
        file.mkdir()
        for method, path, body in (("POST", "/v1/completions", {"prompt": "x", "session": "tale"}),
                                   ("POST", "/v1/sessions/tale", {}), ("GET", "/v1/sessions/tale", None),
                                   ("DELETE", "/v1/sessions/tale", None)):
            status, _, got = client.ask(method, path, body)
            said = got["error"]["message"]
            assert status == 500 and "the session 'tale'" in said and str(root) not in said, (status, got)
            assert "its file is not a regular file; whoever runs the server can mend that" in said, got
        file.rmdir()
        pathlib.Path(folder, "elsewhere").write_bytes(b"damaged")
        file.symlink_to(pathlib.Path(folder, "elsewhere"))
        status, _, got = client.ask("POST", "/v1/sessions/tale", {})
        assert status == 500 and "whoever runs the server can mend that" in got["error"]["message"], (status, got)
        assert client.ask("DELETE", "/v1/sessions/tale")[0] == 404, "it is not advised"
        file.unlink()
        assert client.complete(prompt="x", session="tale", max_tokens=2)[0] == 200
        # A thread of its own writes the log.
        wait_for(lambda: sum(" failed " in line for line in server.lines) >= 11, "the log does not say it")
        server.process.kill()
    with LiveServer(kvasir, model, "--kv-memory", "64MiB", "--sessions", str(root)) as again:
        assert again.end() == 0, "a server that was killed keeps the folder"
    server.reader.join(10)
    failed = [line for line in server.lines if " failed " in line]
    assert len(failed) == 11, server.lines
    for line in failed:
        assert re.search(r' failed id=\S+ request_id=\S+ tenant="" session=tale http=500 message="the session \'tale\' cannot', line), line


def main(kvasir, model):
    with tempfile.TemporaryDirectory() as folder:
        for check in (check_quotas, check_deletion, check_default_that_demotes, check_refusals, check_folder):
            began = time.time()
            check(kvasir, model, folder)
            print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
