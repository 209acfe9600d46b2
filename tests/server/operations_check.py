"""Logs, limits in time and the end of `kvasir serve`: operations_check.py KVASIR MODEL"""

import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

from live_server import ENDLESS, UNREAD, LiveServer, wait_for

SECRET = "zanzibar"  # a word of a prompt
# Of these requests a second one waits until the first has ended: each reserves more than half of the memory.
LARGE = {**ENDLESS, "kv": {"policy": "streaming:cap=1600"}}
ONE_AT_A_TIME = ("--admission", "reserve", "--kv-memory", "24MiB", *UNREAD)


def lines_of(path):
    with open(path, encoding="ascii") as file:
        return file.read().splitlines()


def check_log(kvasir, model, folder):
    """One line per request, as JSON, without prompts; strings of clients cannot forge lines."""
    path = os.path.join(folder, "log.json")
    with LiveServer(kvasir, model, "--log-file", path, "--log-format", "json", "--log-level", "debug") as server:
        status, answer = server.complete(prompt=f"{SECRET} went", max_tokens=7, ignore_eos=True)
        assert status == 200
        assert server.complete(max_tokens="many")[0] == 400
        for path_sent in (b"/x\xff\xe2\x80\xae\xc2\x9b31m", b"/x\x7f", b'/","event":"forged', b"/%0aforged"):
            with socket.create_connection(("127.0.0.1", server.port), 300) as raw:
                raw.sendall(b"GET " + path_sent + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                while raw.recv(4096):
                    pass
        with server.stream(prompt="Left alone", **ENDLESS) as left:
            left.fp.raw._sock.shutdown(socket.SHUT_RDWR)
        wait_for(lambda: any('"abandoned"' in line for line in lines_of(path)))
        os.rename(path, path + ".1")
        server.signal(signal.SIGHUP)
        wait_for(lambda: os.path.exists(path) and "log_reopened" in "".join(lines_of(path)))
        assert server.ask("GET", "/health")[0] == 200
        assert server.end() == 0
    old, new = lines_of(path + ".1"), lines_of(path)
    events = [json.loads(line) for line in old + new]
    assert all(e["time"][10] == "T" and e["level"] in ("debug", "info") for e in events)
    assert {e["event"] for e in events} == {"serving", "http", "request", "refused", "log_reopened", "draining",
                                           "ended"}
    done, left = [e for e in events if e["event"] == "request"]
    assert done["id"] == answer["id"] and done["path"] == "/v1/completions" and done["http"] == 200, done
    assert done["finish_reason"] == "length" and done["generated_tokens"] == 7, done
    assert done["prompt_tokens"] == answer["usage"]["prompt_tokens"], done
    assert 0 < done["first_token_s"] <= done["total_s"] and done["queue_s"] >= 0 and done["prefill_s"] >= 0, done
    assert left["finish_reason"] == "abandoned" and left["http"] == 499
    assert SECRET not in "".join(old + new) and "Left alone" not in "".join(old + new)
    paths = [e["path"] for e in events if e["event"] == "http"]
    assert '/","event":"forged' in paths and "/%0aforged" in paths, paths
    assert all(0x20 <= ord(c) < 0x7f for line in old + new for c in line)
    assert not lines_of(path)[0].startswith("/"), "the new file begins with a whole line"


def check_text_log(kvasir, model):
    with LiveServer(kvasir, model) as server:
        assert server.complete(max_tokens=3)[0] == 200
        assert server.end() == 0
        server.reader.join(10)
    requests = [line for line in server.lines if " info request " in line]
    assert len(requests) == 1, server.lines
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z info request id=cmpl-\S+ request_id=[0-9a-f]{32} path=/v1/completions tenant=\"\" "
                    r"http=200 finish_reason=length policy=\S+ samples=1 prompt_tokens=\d+ ", requests[0]), requests[0]
    with LiveServer(kvasir, model, "--log-level", "error") as server:
        assert server.complete(max_tokens=3)[0] == 200
        assert server.end() == 0
        server.reader.join(10)
    assert not [line for line in server.lines if " info " in line]


def check_blocked_log(kvasir, model):
    """Nobody reads standard error: the server serves, counts what it drops, and ends."""
    with LiveServer(kvasir, model, "--log-level", "debug", reads=False) as server:
        connection = server.connect()
        slowest = 0
        for _ in range(6000):
            began = time.time()
            connection.request("GET", "/health")
            assert connection.getresponse().read() == b'{"status":"ok"}'
            slowest = max(slowest, time.time() - began)
        assert server.complete(max_tokens=3)[0] == 200
        dropped = server.metric("kvasir:log_dropped_lines_total")
        assert dropped > 0
        connection.close()
        began = time.time()
        assert server.end() == 0
        took = time.time() - began
    print(f"log blocked: {dropped:.0f} lines dropped, slowest answer {slowest * 1000:.0f} ms, ended in {took:.1f} s")


def check_full_disk(kvasir, model):
    with LiveServer(kvasir, model, "--log-file", "/dev/full") as server:
        assert server.complete(max_tokens=3)[0] == 200
        wait_for(lambda: server.metric("kvasir:log_dropped_lines_total") >= 2)
        assert server.end() == 0


def check_queue_timeout(kvasir, model):
    """A request that no pass reaches in time is refused with 503, also one that asked for a stream."""
    with LiveServer(kvasir, model, "--queue-timeout", "1", "--drain", "0", *ONE_AT_A_TIME) as server:
        holder = server.stream(**LARGE)
        answers = []

        def late(stream):
            answers.append((stream, *server.ask("POST", "/v1/completions", {"prompt": "a word", "stream": stream, **LARGE})))

        threads = [threading.Thread(target=late, args=(stream,)) for stream in (False, True, False, True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(answers) == 4
        for _, status, headers, text in answers:
            assert status == 503 and json.loads(text)["error"]["code"] == "queue_timeout" and headers["Retry-After"]
        assert server.metrics()['kvasir:admission_rejections_total{reason="queue_timeout",model_name="m"}'] == "4"
        assert server.running() == 1, "the place was free: nothing was shown"
        assert server.end() == 0
        holder.close()


def check_drain(kvasir, model, folder):
    """SIGTERM: ready no more, streams under way end whole, then exit 0; systemd is told."""
    address = os.path.join(folder, "notify")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(address)
    manager.settimeout(300)
    with LiveServer(kvasir, model, "--drain", "600", *ONE_AT_A_TIME, environment={"NOTIFY_SOCKET": address}) as server:
        assert manager.recv(100) == b"READY=1"
        kept = server.connect()
        kept.request("GET", "/ready")
        assert kept.getresponse().read() == b'{"status":"ready"}'
        # A connection that has sent half a request is none that waits.
        half = socket.create_connection(("127.0.0.1", server.port), 300)
        half.sendall(b"GET /ready HTTP/1.1\r\nHost: localhost\r\n")
        # The second answer has begun, and waits until the first one's client has left.
        endless, stream = server.stream(**LARGE), server.stream(**{**LARGE, "max_tokens": 1600, "stop": [" "]})
        wait_for(lambda: server.metric("kvasir:num_requests_waiting") == 1)
        assert server.running() == 1
        server.signal(signal.SIGTERM)
        assert manager.recv(100) == b"STOPPING=1"
        wait_for(server.refuses_connections, "it still accepts connections")
        half.sendall(b"\r\n")
        assert half.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert server.process.poll() is None
        endless.fp.raw._sock.shutdown(socket.SHUT_RDWR)
        text = stream.read().decode()
        assert text.rstrip().endswith("data: [DONE]") and re.search('"finish_reason":"(stop|length)"', text), text
        assert server.process.wait(300) == 0


def check_deadline(kvasir, model):
    """What the end of --drain cuts off is told: a stream by an event, all else by 503, and logs and metrics know it."""
    with LiveServer(kvasir, model, "--drain", "1", *UNREAD) as server:
        stream = server.stream(**ENDLESS)
        whole, half = server.connect(), server.connect()
        whole.request("POST", "/v1/completions", json.dumps({"prompt": "x", **ENDLESS}))
        half.putrequest("POST", "/v1/completions")
        half.putheader("Content-Length", "1000")
        half.endheaders(b'{"prompt": ')
        wait_for(lambda: server.running() == 2)
        began = time.time()
        server.signal(signal.SIGTERM)
        events = stream.read().decode().strip().split("\n\n")
        told = [json.loads(events[-1].removeprefix("data: "))]
        for connection in (whole, half):
            answer = connection.getresponse()
            assert answer.status == 503 and answer.getheader("Connection") == "close", answer.status
            told.append(json.load(answer))
        for each in told:
            assert each["error"]["code"] == "shutdown" and "send the request" in each["error"]["message"], each
            assert each["error"]["type"] == "server_error", each
        assert server.process.wait(300) == 0
        assert time.time() - began > 0.9
        server.reader.join(10)
    ended = [re.search(r" (\w+) request .* http=(\d+) finish_reason=(\w+) ", line) for line in server.lines]
    ended = sorted(found.groups() for found in ended if found)
    assert ended == [("warning", "200", "shutdown"), ("warning", "503", "shutdown")], server.lines
    for line in (line for line in server.lines if "finish_reason=shutdown" in line):
        times = {name: float(value) for name, value in re.findall(r" (\w+)_s=(\S+)", line)}
        assert all(value >= 0 for value in times.values()), line
        assert abs(times["queue"] + times["prefill"] + times["decode"] - times["total"]) < 0.01, line
        assert ' policy="streaming:' in line, line
    assert not any(" failed " in line for line in server.lines), "it is no fault"


def check_deadline_with_little(kvasir, model):
    """With --drain 0 nothing may go on, and a client that takes nothing does not hold the server up."""
    with LiveServer(kvasir, model, "--drain", "0", *UNREAD) as server:
        # Its one token is not shown in the text, so that all the server writes fits the kernel's buffers.
        silent = json.loads(server.ask("POST", "/tokenize", {"prompt": "x"})[2])["tokens"][0]
        stuck = socket.create_connection(("127.0.0.1", server.port), 300)
        body = json.dumps({"prompt": "x", "stream": True, "logit_bias": {str(silent): 100}, "temperature": 0, **ENDLESS}).encode()
        stuck.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: server.running() == 1)
        assert server.end() == 0
        text = b""
        while part := stuck.recv(1 << 16):
            text += part
        assert b'"code":"shutdown"' in text and text.endswith(b"\r\n0\r\n\r\n"), text[-300:]


def check_second_signal(kvasir, model):
    with LiveServer(kvasir, model, "--drain", "3600", *UNREAD) as server:
        with server.stream(**ENDLESS):
            server.signal(signal.SIGINT)
            wait_for(server.refuses_connections)
            server.signal(signal.SIGINT)
            assert server.process.wait(300) == -signal.SIGINT


def check_little_memory(kvasir, model):
    """Where memory for a model or a thread is missing, one line says so."""
    ended = 0
    for kib in (18000, 21000, 25000, 50000, 80000, 100000, 150000):
        process = subprocess.Popen([kvasir, "serve", "-m", model, "--port", "0", "--threads", "2"], stderr=subprocess.PIPE,
                                   text=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (kib << 10, kib << 10)))
        said = []
        for line in process.stderr:
            said.append(line)
            if "http://" in line:
                process.terminate()
                break
        said += process.stderr.readlines()
        code = process.wait(300)
        ended += code == 1
        assert code in (0, 1) or (code == 127 and "shared libraries" in said[0]), (kib, code, said)
        assert code != 1 or (said[-1].startswith("kvasir: ") and "terminate" not in "".join(said)), (kib, said)
    assert ended > 2, "memory was not short"


def main(kvasir, model):
    with tempfile.TemporaryDirectory() as folder:
        for check in (lambda: check_log(kvasir, model, folder), lambda: check_text_log(kvasir, model),
                      lambda: check_blocked_log(kvasir, model), lambda: check_full_disk(kvasir, model),
                      lambda: check_queue_timeout(kvasir, model), lambda: check_drain(kvasir, model, folder),
                      lambda: check_deadline(kvasir, model), lambda: check_deadline_with_little(kvasir, model),
                      lambda: check_second_signal(kvasir, model),
                      lambda: check_little_memory(kvasir, model)):
            began = time.time()
            check()
            print(f"{check.__code__.co_names[0]}: {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
