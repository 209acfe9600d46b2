"""A `kvasir serve` under test, as the checks of operations use it."""

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

# Fields of a request whose answer has no end, so that only a client or the server's end can end it. A client that does not read
# it needs a server with UNREAD.
ENDLESS = {"max_tokens": 10**9, "ignore_eos": True, "kv": {"policy": "streaming:window=60"}}
UNREAD = ("--max-unread", "4GiB", "--write-timeout", "3600")


def wait_for(holds, what="it did not come to be"):
    """Waits for what must come; only what never comes takes as many looks."""
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError(what)


class LiveServer:
    """Starts the server on a free port. Its standard error is collected in `lines` unless `reads` is False."""

    def __init__(self, kvasir, model, *options, reads=True, environment=None, place=("-m",)):
        self.lines = []
        given = ["--name", "m"] if place else []
        given += [*place, model] if model else []
        self.process = subprocess.Popen([kvasir, "serve", *given, "--port", "0", *options],
                                        stderr=subprocess.PIPE, text=True, env={**os.environ, **(environment or {})})
        for line in self.process.stderr:
            self.lines.append(line)
            found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
            if found:
                self.port = int(found[1])
                break
        else:
            sys.exit("the server did not start: " + "".join(self.lines))
        if reads:
            self.reader = threading.Thread(target=lambda: self.lines.extend(self.process.stderr), daemon=True)
            self.reader.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=600)

    def ask(self, method, path, body=None, headers=None):
        connection = self.connect()
        connection.request(method, path, json.dumps(body) if isinstance(body, dict) else body, headers or {})
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, dict(answer.getheaders()), text

    def complete(self, **body):
        status, _, text = self.ask("POST", "/v1/completions", {"prompt": "Once upon a time", "temperature": 0, **body})
        return status, json.loads(text)

    def stream(self, **body):
        """Begins a stream; returns its answer once its first event has come."""
        connection = self.connect()
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "stream": True, **body}))
        answer = connection.getresponse()
        assert answer.status == 200, answer.status
        assert answer.readline().startswith(b"data: ")
        return answer

    def metrics(self):
        """Sample name with labels -> value."""
        status, headers, text = self.ask("GET", "/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4"), (status, headers)
        return dict(re.match(r"(.+) (\S+)$", line).groups() for line in text.splitlines() if not line.startswith("#"))

    def metric(self, name):
        """The sum of a metric's samples."""
        found = [float(value) for key, value in self.metrics().items() if key.split("{")[0] == name]
        assert found, f"there is no metric {name}"
        return sum(found)

    def running(self):
        return self.metric("kvasir:num_requests_running")

    def refuses_connections(self):
        """As it does once it drains."""
        try:
            socket.create_connection(("127.0.0.1", self.port), 60).close()
            return False
        except ConnectionRefusedError:
            return True

    def signal(self, number):
        self.process.send_signal(number)

    def end(self, seconds=300):
        """Ends it as a service manager does; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(seconds)


def refused(kvasir, model, *options):
    """The one line with which a server with these options refuses to start."""
    ran = subprocess.run([kvasir, "serve", "-m", model, "--port", "0", *options], capture_output=True, text=True, timeout=60)
    assert ran.returncode in (1, 2), ran
    said = [line for line in ran.stderr.splitlines() if line.startswith("kvasir: ")]
    assert len(said) == 1, ran.stderr
    return said[0]
