"""API keys, tenants and usage against the real program: keys_check.py KVASIR MODEL

Makes a keys file with `kvasir keys`, serves with it, and checks who passes, what happens when the file changes, the
limits, and what the usage database holds after the server was killed.
"""

import http.client
import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 300  # seconds; only what hangs takes so long


class Server:
    """Collects all that the server writes."""

    def __init__(self, kvasir, model, *options):
        self.lines = []
        self.process = subprocess.Popen([kvasir, "serve", "-m", model, "--port", "0", "--name", "m", "--kv-memory",
                                         "64MiB", *options], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.port = None
        threading.Thread(target=self.read, daemon=True).start()
        wait_until(lambda: self.port or self.process.poll() is not None)
        assert self.port, self.lines

    def read(self):
        for line in self.process.stdout:
            self.lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])

    def ask(self, method, path, key=None, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        connection.request(method, path, body and json.dumps(body), {"Authorization": f"Bearer {key}"} if key else {})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, dict(answer.getheaders()), json.loads(text)

    def complete(self, key, tokens=4):
        return self.ask("POST", "/v1/completions", key, {"prompt": "Once upon", "max_tokens": tokens, "ignore_eos": True})

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(PATIENCE) == 0, self.lines


def wait_until(condition):
    began = time.time()
    while not condition():
        assert time.time() - began < PATIENCE, "waited in vain"
        time.sleep(0.02)
    return time.time() - began


class Check:
    def __init__(self, kvasir, model, folder):
        self.kvasir, self.model, self.folder = kvasir, model, folder
        self.file, self.db = f"{folder}/keys.toml", f"{folder}/usage.db"
        self.secrets = []

    def keys(self, *arguments, code=0):
        done = subprocess.run([self.kvasir, "keys", *arguments, "--api-keys", self.file], capture_output=True, text=True)
        assert done.returncode == code, done
        return done

    def add(self, tenant, *options):
        """Returns a new key and its id."""
        done = self.keys("add", "--tenant", tenant, *options)
        key = done.stdout.strip()
        assert re.fullmatch(r"kvasir_[A-Za-z0-9_-]{43}", key) and key not in done.stderr, done
        self.secrets.append(key)
        return key, re.search(r"this is key (\w+) of", done.stderr)[1]

    def usage(self, *options):
        done = subprocess.run([self.kvasir, "usage", "--db", self.db, "--json", *options], capture_output=True, text=True)
        return {row["tenant"]: row for row in json.loads(done.stdout)["usage"]} if done.returncode == 0 else {}

    def serve(self, *options):
        return Server(self.kvasir, self.model, "--api-keys", self.file, "--usage-db", self.db, *options)

    def command(self):
        done = self.keys("add", "--tenant", "red", "--json")  # a new file has room for its first tenant
        assert "is new, with the tenant 'red', which has no limits" in done.stderr, done.stderr
        assert json.loads(done.stdout)["tenant"] == "red"
        os.remove(self.file)
        self.keys("tenant", "red", "--floor", "1MiB", "--ceiling", "32MiB")
        done = self.keys("add", "--tenant", "rde", code=2)
        assert "there is no tenant 'rde'" in done.stderr
        assert stat.S_IMODE(os.stat(self.file).st_mode) == 0o600
        self.keys("tenant", "blue", "--requests-per-minute", "100000")
        self.keys("tenant", "a b", code=2)
        self.keys("tenant", "blue", "--floor", "2MiB", "--ceiling", "1MiB", code=2)
        self.red, self.red_id = self.add("red")
        self.blue, _ = self.add("blue", "--priority", "2")
        self.late, late_id = self.add("blue", "--expires", "1h")
        self.keys("add", "--tenant", "blue", "--expires", "2001-01-01", code=2)
        for when, said in (("soon", "'soon' is neither a date such as"), ("2027-02-30", "there is no '2027-02-30' in the calendar"),
                           ("2027-01-01T25:00:00Z", "there is no '2027-01-01T25:00:00Z' in the calendar"),
                           ("99999999d", "'99999999d' is out of range; give 1h to 36500d"), ("0h", "'0h' is out of range")):
            assert said in self.keys("add", "--tenant", "blue", "--expires", when, code=2).stderr, when
        for option in ("requests-per-minute", "tokens-per-minute", "concurrent"):
            said = self.keys("tenant", "blue", f"--{option}", "-1", code=2).stderr
            assert f"{option} of tenant 'blue' is -1; give 0 (no limit) to 1000000000000" in said, said
        said = self.keys("tenant", "b" * 65, code=2).stderr
        assert "'bbbbbbbbbbbbbbbbbbbb...' has 65 characters; 64 are the most" in said, said
        said = self.keys("tenant", "blue", "--floor", "16EiB", code=2).stderr
        assert "--floor: '16EiB' is too large; give 8EiB or less" in said, said
        listed = json.loads(self.keys("list", "--json").stdout)
        assert [t["name"] for t in listed["tenants"]] == ["blue", "red"] and len(listed["keys"]) == 3
        assert {k["id"]: bool(k["expires"]) for k in listed["keys"]}[late_id]
        shown = self.keys("list").stdout + open(self.file).read()
        assert not any(key in shown or key[7:20] in shown for key in self.secrets)
        self.keys("revoke", "nothing", code=2)
        self.keys("tenant", "red", "--remove", code=2)  # it has a key
        os.chmod(self.file, 0o644)
        assert "chmod 600" in self.keys("list", code=2).stderr
        os.chmod(self.file, 0o600)

    def refused_to_start(self):
        def start(*options):
            done = subprocess.run([self.kvasir, "serve", "-m", self.model, "--port", "0", *options], capture_output=True,
                                  text=True, timeout=60)
            assert done.returncode == 2 and done.stderr.count("\n") == 1, done
            return done.stderr
        assert "without API keys" in start("--host", "0.0.0.0")
        assert "there is no keys file" in start("--api-keys", self.folder + "/none")
        assert "is a folder; give the keys file" in start("--api-keys", self.folder)
        assert "there is no folder" in start("--usage-db", self.folder + "/none/usage.db")
        assert "is a folder; give a file" in start("--usage-db", self.folder)
        self.keys("tenant", "green", "--floor", "1TiB")
        assert "floors are more than the KV memory" in start("--api-keys", self.file, "--kv-memory", "64MiB").replace(
            "kvasir: loading\n", "")
        assert "its sessions and usage stay" in self.keys("tenant", "green", "--remove").stderr

    def callers(self, server):
        for path in ("/v1/models", "/v1/usage"):
            assert server.ask("GET", path)[0] == 401
        assert server.ask("GET", "/health")[0] == 200 and server.ask("GET", "/ready")[0] == 200
        for key in (None, "kvasir_wrong", self.red + "x", self.red[:-1], self.red.lower(), "é" * 100, "x" * 9000):
            connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
            fields = {"Authorization": f"Bearer {key}".encode()} if key else {}
            connection.request("POST", "/v1/completions", json.dumps({"prompt": "x"}), fields)
            answer = connection.getresponse()
            text = answer.read().decode()
            error = json.loads(text)["error"]
            assert answer.status == 401 and answer.getheader("WWW-Authenticate") == "Bearer", (key, text)
            assert error["code"] == "invalid_api_key" and error["type"] and error["message"], text
            assert not key or key not in text
            connection.close()
        for key in (self.red, self.blue, self.late):
            assert server.complete(key)[0] == 200
        assert server.ask("GET", "/v1/models", self.red)[0] == 200

    def changes(self, server):
        key, key_id = self.add("red")
        took = wait_until(lambda: server.complete(key)[0] == 200)
        self.keys("revoke", key_id)
        gone = wait_until(lambda: server.complete(key)[0] == 401)
        print(f"  a new key passed after {took:.2f} s, a revoked one was refused after {gone:.2f} s")
        good = open(self.file).read()
        with open(self.file, "w") as file:
            file.write(good[:len(good) // 2])
        wait_until(lambda: any("the keys of before stay" in line for line in server.lines))
        assert server.complete(self.red)[0] == 200
        with open(self.file, "w") as file:
            file.write(good)
        self.keys("prune")
        assert len(json.loads(self.keys("list", "--json").stdout)["keys"]) == 3

    def limits(self, server):
        self.keys("tenant", "slow", "--requests-per-minute", "3")
        self.keys("tenant", "few", "--tokens-per-minute", "20")
        self.keys("tenant", "one", "--concurrent", "1")
        slow, few, one = (self.add(name)[0] for name in ("slow", "few", "one"))
        wait_until(lambda: server.ask("GET", "/v1/models", one)[0] == 200)
        statuses = [server.complete(slow)[0] for _ in range(3)]
        while statuses[-1] == 200 and len(statuses) < 50:  # a slow machine earns some more meanwhile
            statuses.append(server.complete(slow)[0])
        assert statuses[:3] == [200, 200, 200] and statuses[-1] == 429, statuses
        status, fields, body = server.complete(slow)
        assert status == 429 and body["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(fields["Retry-After"]) <= 20 and "3 requests a minute" in body["error"]["message"], body
        assert server.complete(few, 60)[0] == 200
        status, fields, body = server.complete(few)
        assert status == 429 and "20 tokens a minute" in body["error"]["message"] and int(fields["Retry-After"]) > 60

        stream = self.endless_stream(server, one)
        status, _, body = server.complete(one)
        assert status == 429 and "1 request at a time" in body["error"]["message"], body
        assert server.complete(self.blue)[0] == 200  # others are not concerned
        stream.close()
        wait_until(lambda: server.complete(one)[0] == 200)
        wait_until(lambda: self.usage().get("one", {}).get("abandoned") == 1)
        rows = self.usage()
        assert rows["one"]["generated_tokens"] > 4 and rows["slow"]["refused"] == 2, rows

    def endless_stream(self, server, key):
        """Returns a connection on which an answer without end has begun."""
        stream = socket.create_connection(("127.0.0.1", server.port), PATIENCE)
        body = json.dumps({"prompt": "Once", "max_tokens": 10**9, "stream": True, "ignore_eos": True,
                           "kv": {"policy": "streaming:window=64"}}).encode()
        stream.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %b\r\nContent-Length: %d\r\n\r\n"
                       % (key.encode(), len(body)) + body)
        assert b" 200 " in stream.recv(10000)
        return stream

    def usage_survives(self, server):
        before = self.usage().get("blue", {"requests": 0, "generated_tokens": 0})
        for _ in range(5):
            assert server.complete(self.blue, 6)[0] == 200
        # A kill may lose what has not been written, which happens every second.
        wait_until(lambda: self.usage().get("blue", {"requests": 0})["requests"] >= before["requests"] + 5)
        completed = self.usage()["blue"]["prompt_tokens"] - before.get("prompt_tokens", 0)
        # An answer that runs is counted while it runs: prompt and tokens so far, but not yet as a request.
        running = self.endless_stream(server, self.blue)
        told = lambda: self.usage()["blue"]["generated_tokens"] - before["generated_tokens"] - 5 * 6
        wait_until(lambda: running.recv(1 << 16) and told() > 100)
        server.process.kill()
        server.process.wait()
        running.close()
        after = self.usage()["blue"]
        per_request = after["prompt_tokens"] - before.get("prompt_tokens", 0)
        assert told() > 100 and per_request >= completed + 2, (before, after)  # "Once", and BOS before it
        # Requests of the checks before may have been committed since `before` was read.
        assert after["requests"] >= before["requests"] + 5, (before, after)
        server = self.serve()
        assert server.complete(self.blue, 6)[0] == 200 and server.complete(self.red, 6)[0] == 200
        status, _, own = server.ask("GET", "/v1/usage", self.blue)
        assert status == 200 and own["tenant"] == "blue" and "red" not in json.dumps(own), own
        assert own["total"]["requests"] == after["requests"] + 1, (own, after)
        assert own["total"]["generated_tokens"] == after["generated_tokens"] + 6
        assert own["total"]["requests"] == sum(row["requests"] for row in own["data"])
        assert server.ask("GET", "/v1/usage?since=2100-01-01", self.blue)[2]["total"]["requests"] == 0
        assert server.ask("GET", "/v1/usage?since=then", self.blue)[0] == 400
        server.end()
        assert self.usage()["blue"]["requests"] == after["requests"] + 1
        table = subprocess.run([self.kvasir, "usage", "--db", self.db, "--by", "day", "--since", "7d"], check=True,
                               capture_output=True, text=True).stdout
        assert "blue" in table and time.strftime("%Y-%m-%d", time.gmtime()) in table, table
        return server

    def without_database(self):
        """A usage database that cannot be made does not end the server."""
        with open(self.folder + "/not-a-database", "w") as file:
            file.write("x" * 5000)
        server = Server(self.kvasir, self.model, "--api-keys", self.file, "--usage-db", self.folder + "/not-a-database")
        wait_until(lambda: any("usage is not written" in line for line in server.lines))
        assert server.complete(self.blue)[0] == 200 and server.ask("GET", "/v1/usage", self.blue)[0] == 503
        server.end()
        return server


def main(kvasir, model):
    with tempfile.TemporaryDirectory() as folder:
        check = Check(kvasir, model, folder)
        check.command()
        check.refused_to_start()
        servers = [check.serve("--host", "127.0.0.1")]
        try:
            for part in (check.callers, check.changes, check.limits):
                began = time.time()
                part(servers[0])
                print(f"{part.__name__}: {time.time() - began:.1f} s", flush=True)
            servers.append(check.usage_survives(servers[0]))
            servers.append(check.without_database())
        finally:
            servers[0].process.kill()
        written = "".join(line for server in servers for line in server.lines)
        written += open(check.file).read() + open(check.db, "rb").read().decode("latin-1")
        assert written and not any(key in written for key in check.secrets)
        print("usage survives, and no key is in any log or file")


if __name__ == "__main__":
    main(*sys.argv[1:3])
