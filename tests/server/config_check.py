"""The configuration file of `kvasir serve`: config_check.py KVASIR MODEL"""

import os
import re
import subprocess
import sys
import tempfile

from live_server import LiveServer


def refused(kvasir, text, *options):
    """Returns the line with which a configuration is refused."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "k.toml")
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else text.encode())
        done = subprocess.run([kvasir, "serve", "--config", path, *options], capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and done.stderr.count("\n") == 1, (text, done.returncode, done.stderr)
        return done.stderr.replace(folder + "/", "")


def check_errors(kvasir, model):
    for text, said in (
            ("host = '127.0.0.1'\nprot = 8080\n", r"k\.toml:2:1: there is no option 'prot'; did you mean 'port'\?"),
            ("kv_memory = '1GiB'", r"k\.toml:1:1: .* did you mean 'kv-memory'\?"),
            ("model = 'x'\n  port = 'high'", r"k\.toml:2:3: port: a whole number is expected"),
            ("port = 80.5", r"k\.toml:1:1: port: a whole number"),
            ("port = 99999", r"k\.toml:1:1: port: '99999' is out of range \(0 to 65535\)"),
            ("port = 99999999999999999999", r"k\.toml:1:"),
            ("max-batch = 65", r"k\.toml:1:1: max-batch: '65' is out of range \(1 to 64\)"),
            ("drain = -1", r"k\.toml:1:1: drain: '-1' is out of range \(0 to 86400\)"),
            ("queue = 0", r"k\.toml:1:1: queue: '0' is out of range \(1 to 1000000\)"),
            ("port = 0\nswap-size = '1GiB'", r"k\.toml:2:1: swap-size: it needs 'swap-dir' too"),
            ("max-header = 5", r"k\.toml:1:1: max-header: '5' is out of range \(1024 to 4294967296\)"),
            ("kv-memory = 'much'", r"k\.toml:1:1: kv-memory: 'much' is no size"),
            ("vllm-metrics = 'yes'", r"k\.toml:1:1: vllm-metrics: true or false is expected"),
            ("model = true", r"k\.toml:1:1: model: a string is expected"),
            ("model = ['a', 'b']", r"k\.toml:1:1: model: a single string"),
            ("template-arg = [1]", r"k\.toml:1:1: template-arg: a list of strings is expected, not a number"),
            ("name = 1979-05-27", r"k\.toml:1:1: name: no option is a date"),
            ("port = 1\nport = 2", r"k\.toml:2:\d+: .*port"),
            ("[limits]\nport = 1", r"k\.toml:1:\d+: limits: this is a table"),
            ("a.b = 1", r"k\.toml:1:\d+: a: this is a table"),
            ("config = 'x'", r"k\.toml:1:1: there is no option 'config'"),
            ("help = true", r"k\.toml:1:1: there is no option 'help'"),
            ("name = \u00e9", r"k\.toml:1:\d+: "),
            ("log-format = 'xml'", r"k\.toml:1:1: log-format: 'xml' is unknown; there are: text, json "),
            ("log-level = 'loud'", r"k\.toml:1:1: log-level: 'loud' is unknown; there are: debug, info, warning, error "),
            ("[(\nport = 1", r"k\.toml:1:\d+: "),
            ("port = \n", r"k\.toml:1:\d+: "),
            ("name = 'a\x00b'", r"k\.toml:1:\d+: "),
            (b"name = '\xff\xfe'", r"k\.toml:1:\d+: "),
            ("a = " + "[" * 10000, r"k\.toml:1:\d+: "),
            ("x" * 100000, r"k\.toml:1:\d+: ")):
        line = refused(kvasir, text)
        assert re.search("^kvasir: " + said, line), (text[:40], line)
    # Values that only their use finds wrong.
    for text, said in (("stop-mark = 2", "k.toml: stop-mark 2 is outside"), ("max-itl = -1", "k.toml: max-itl -1 is outside"),
                       ("threads = 5000", "k.toml: threads 5000 is outside"), ("kv = 'nope'", "[k.toml: kv]"),
                       ("preempt-mark = 0.5", "k.toml: preempt-mark 0.5 is outside [0.9, 1], "),
                       ("preempt-mark = 0.5", " [k.toml: stop-mark]"),
                       ("host = '0.0.0.0'", "k.toml: host 0.0.0.0 is refused without API keys: "),
                       ("host = '127.0.0.256'", "'127.0.0.256' is not an address; give one such as 127.0.0.1, 0.0.0.0 or ::1 [k.toml: host]"),
                       ("chat-template = '/nowhere/t'", "cannot open '/nowhere/t': No such file or directory [k.toml: chat-template]"),
                       ("log-file = '/nowhere/log'", "[k.toml: log-file]"), ("sessions = '/dev/null'", "[k.toml: sessions]"),
                       ("usage-db = '/nowhere/u.db'", "[k.toml: usage-db]"), ("usage-db = '/tmp'", "[k.toml: usage-db]"),
                       ("api-keys = '/nowhere/keys'", "[k.toml: api-keys]"), ("api-keys = '/tmp'", "[k.toml: api-keys]"),
                       ("kv-events = 'tcp://x'", "[k.toml: kv-events]")):
        line = refused(kvasir, text, "-m", model)
        assert said in line and "KVASIR_" not in line, (text, line)
    line = refused(kvasir, "stop-mark = 2", "-m", model, "--stop-mark", "3")
    assert "--stop-mark 3 is outside" in line, line
    line = refused(kvasir, "stop-mark = 0.5", "-m", model, "--preempt-mark", "0.3")
    assert "--preempt-mark 0.3 is outside" in line and line.endswith(" [k.toml: stop-mark]\n"), line
    line = refused(kvasir, "log-file = '/nowhere/log'", "-m", model, "--log-file", "/nowhere/other")
    assert line.endswith("'/nowhere/other': No such file or directory\n"), line
    line = refused(kvasir, "port = 'high'", "--port", "0")
    assert "a whole number is expected" in line, "a wrong value is told although the command line gives another"
    done = subprocess.run([kvasir, "serve", "--config", "/nowhere/k.toml"], capture_output=True, text=True)
    assert done.returncode == 2 and "/nowhere/k.toml" in done.stderr
    done = subprocess.run([kvasir, "serve", "--config", "/dev/zero"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.count("\n") == 1


def printed(kvasir, *options, environment=None):
    """Returns what --print-config says: name -> value as TOML, and all of its text."""
    done = subprocess.run([kvasir, "serve", *options, "--print-config"], capture_output=True, text=True,
                          env={**os.environ, **(environment or {})})
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return dict(re.findall(r"^([\w-]+) = (.*)$", done.stdout, re.MULTILINE)), done.stdout


def check_precedence(kvasir, folder):
    path = os.path.join(folder, "order.toml")
    with open(path, "w") as file:
        file.write("kv-memory = '1MiB'\nthreads = 1\nport = 1\n")
    got, _ = printed(kvasir, "--config", path)
    assert (got["kv-memory"], got["threads"], got["port"], got["host"]) == ("1048576", "1", "1", '"127.0.0.1"'), got
    environment = {"KVASIR_KV_MEMORY": "2MiB", "KVASIR_THREADS": "2"}
    got, _ = printed(kvasir, "--config", path, environment=environment)
    assert (got["kv-memory"], got["threads"], got["port"]) == ("2097152", "2", "1"), got
    got, _ = printed(kvasir, "--config", path, "--kv-memory", "3MiB", "--port", "3", environment=environment)
    assert (got["kv-memory"], got["threads"], got["port"]) == ("3145728", "2", "3"), got


def check_round_trip(kvasir, folder):
    """What is printed reads as what was printed, whatever the texts contain."""
    options = ["-m", 'a "b" \\ \n\t\x7f \u00e9', "--name", "#no comment", "--kv", "streaming:sinks=2,window=30",
               "--template-arg", 'a="x"', "--template-arg", "b=2", "--vllm-metrics", "--max-body", "1MiB", "--quiet"]
    values, text = printed(kvasir, *options)
    path = os.path.join(folder, "again.toml")
    with open(path, "w") as file:
        file.write(text)
    assert printed(kvasir, "--config", path)[1] == text
    assert values["vllm-metrics"] == "true" and values["metrics-open"] == "false" and values["max-body"] == "1048576"
    help_text = subprocess.run([kvasir, "serve", "--help"], capture_output=True, text=True, check=True).stdout
    names = set(re.findall(r"^  (?:-\w,)?--([\w-]+)", help_text, re.MULTILINE)) - {"help", "config", "print-config", "plan", "json"}
    missing = {name for name in names if not re.search(rf"^#?{name} = ", text, re.MULTILINE)}
    assert len(names) > 25 and not missing, missing


def check_use(kvasir, model, folder):
    """A server that has all it needs from its file."""
    path = os.path.join(folder, "serve.toml")
    with open(path, "w") as file:
        file.write(f"model = '{model}'\nmax-body = '2KiB'\nmax-header-fields = 9\nkv-memory = '1MiB'\nlog-format = 'json'\n")
    with LiveServer(kvasir, None, "--config", path) as server:
        assert server.complete(max_tokens=2)[0] == 200
        status, answer = server.complete(max_tokens=2, kv={"policy": "streaming:cap=64"})
        assert status == 400 and answer["error"]["param"] == "kv.policy", answer
        assert "but there are 1048576 for all requests" in answer["error"]["message"], answer
        assert server.ask("POST", "/v1/completions", b"x" * 3000)[0] == 413
        assert server.ask("GET", "/health", headers={f"X-{i}": "x" for i in range(10)})[0] == 431
        assert server.end() == 0


def main(kvasir, model):
    with tempfile.TemporaryDirectory() as folder:
        check_errors(kvasir, model)
        check_precedence(kvasir, folder)
        check_round_trip(kvasir, folder)
        check_use(kvasir, model, folder)
    print("errors, precedence, round trip and use of a configuration file: as they should be")


if __name__ == "__main__":
    main(*sys.argv[1:3])
