"""What clients of other servers rely on, against a real server: clients_check.py KVASIR MODEL"""

import email.utils
import gzip
import http.client
import json
import random
import re
import socket
import subprocess
import sys
import time

from live_server import ENDLESS, LiveServer, wait_for

GREEDY = {"temperature": 0}


def post(server, path, body, headers=None):
    status, fields, text = server.ask("POST", path, body, headers)
    return status, fields, json.loads(text)


def run_tokens(server, *arguments):
    done = subprocess.run([KVASIR, "tokenize", "-m", MODEL, "--ids", *arguments], check=True, capture_output=True, text=True)
    return [int(each) for each in done.stdout.split()]


def check_control_tokens(server):
    """In a raw prompt a control token that is written out is that token; in a message it is text."""
    for path in ("/tokenize", "/v1/completions/render"):
        def tokens(body):
            got = post(server, path, body)[2]
            return got["tokens"] if path == "/tokenize" else got[0]["token_ids"]
        assert tokens({"prompt": "a</s>b"}).count(2) == 1, path
        plain = tokens({"prompt": "a</s>b", "parse_special": False})
        assert 2 not in plain and plain == run_tokens(server, "-p", "a</s>b")
    rendered = post(server, "/tokenize", {"messages": [{"role": "user", "content": "a</s>b"}]})[2]["tokens"]
    assert 2 not in rendered
    with_it = post(server, "/v1/completions", {"prompt": "a</s>b", "max_tokens": 1})[2]["usage"]["prompt_tokens"]
    without = post(server, "/v1/completions", {"prompt": "a</s>b", "max_tokens": 1, "parse_special": False})[2]
    assert with_it < without["usage"]["prompt_tokens"]


def check_end_token(server):
    """With log-probabilities the end token has an entry too: lm-eval takes off the last entry, whatever it is."""
    body = {"prompt": "Once upon a time", "max_tokens": 1, "logprobs": 1, "logit_bias": {"2": 100}, **GREEDY}
    for more in ({"echo": True}, {}):
        got = post(server, "/v1/completions", {**body, **more})[2]
        choice = got["choices"][0]
        lists = choice["logprobs"]
        prompt = got["usage"]["prompt_tokens"] if more else 0
        assert choice["finish_reason"] == "stop" and lists["tokens"][-1] == "</s>", choice
        assert [len(lists[name]) for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset")] == [prompt + 1] * 4
        assert lists["text_offset"][-1] == len(choice["text"]) and lists["token_logprobs"][-1] < 0
    status, _, text = server.ask("POST", "/v1/completions", {**body, "stream": True})
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    assert status == 200 and chunks[-1]["choices"][0]["logprobs"]["tokens"] == ["</s>"], chunks
    chat = post(server, "/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1,
                                                 "logprobs": True, "logit_bias": {"2": 100}, **GREEDY})[2]
    assert chat["choices"][0]["logprobs"]["content"] == [], "a chat lists what its text has"


def check_names_of_bytes(server):
    """Tokens that are part of a character have names of their own: a map of log-probabilities has no key twice."""
    bytes_of = {index: f"bytes:\\x{index - 6:02x}" for index in (6 + 0xf0, 6 + 0x9f, 6 + 0x98)}
    bias = {str(index): 100 for index in bytes_of}
    body = {"max_tokens": 1, "logit_bias": bias, "temperature": 1, "seed": 1}
    got = post(server, "/v1/completions", {**body, "prompt": "Once", "logprobs": 20})[2]["choices"][0]["logprobs"]
    assert got["tokens"][0] in bytes_of.values(), got
    assert len(got["top_logprobs"][0]) in (20, 21), got["top_logprobs"]
    chat = post(server, "/v1/chat/completions", {**body, "messages": [{"role": "user", "content": "Hi"}], "logprobs": True,
                                                 "top_logprobs": 1})[2]["choices"][0]["logprobs"]["content"][0]
    assert chat["token"] in bytes_of.values() and len(chat["bytes"]) == 1, chat
    got = post(server, "/tokenize", {"prompt": "\U0001f600", "return_token_strs": True})[2]
    assert "bytes:\\xf0" in got["token_strs"] and "\ufffd" not in "".join(got["token_strs"]), got


def check_sampling(server):
    """Without a temperature the server's settings count, and with one those of OpenAI's API; the answer says which."""
    own = post(server, "/v1/completions", {"prompt": "Once", "max_tokens": 1})[2]["sampling"]
    assert (own["temperature"], own["top_k"], own["top_p"], own["min_p"]) == (0.8, 40, 0.95, 0.05), own
    api = post(server, "/v1/completions", {"prompt": "Once", "max_tokens": 1, "temperature": 0.7})[2]["sampling"]
    assert (api["temperature"], api["top_k"], api["top_p"], api["min_p"]) == (0.7, 0, 1, 0), api
    some = post(server, "/v1/completions", {"prompt": "Once", "max_tokens": 1, "top_p": 0.5})[2]["sampling"]
    assert (some["temperature"], some["top_p"]) == (0.8, 0.5), some
    _, _, text = server.ask("POST", "/v1/completions", {"prompt": "Once", "max_tokens": 1, "stream": True, "temperature": 0})
    last = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")][-1]
    assert last["sampling"]["temperature"] == 0, last
    with LiveServer(KVASIR, MODEL, "--temp", "0.3", "--top-p", "0.6", "--min-p", "0.1") as other:
        own = post(other, "/v1/completions", {"prompt": "Once", "max_tokens": 1})[2]["sampling"]
        assert (own["temperature"], own["top_k"], own["top_p"], own["min_p"]) == (0.3, 40, 0.6, 0.1), own


def check_turns(server):
    """What a chat reads is the template's own output, for any order of roles."""
    chance = random.Random(37)
    for _ in range(40):
        messages = [{"role": chance.choice(["system", "user", "assistant"]),
                     "content": chance.choice(["Hi", "Be brief.", "x\ny", "日本", " a "])} for _ in range(chance.randrange(1, 6))]
        body = {"messages": messages, "add_generation_prompt": True}
        status, _, got = post(server, "/v1/chat/completions/render", body)
        want = post(server, "/v1/completions/render", {"prompt": markers(messages, opens=True)})[2][0]["token_ids"]
        assert status == 200 and got["token_ids"] == want, (messages, got, want)
    for content in ("Who are you?", "a\n"):
        got = post(server, "/tokenize", {"messages": [{"role": "user", "content": content}]})[2]["tokens"]
        assert got == run_tokens(server, "--chat", "-p", json.dumps([{"role": "user", "content": content}]))


def markers(messages, opens):
    """The text of the test model's stand-in template, in which contents are plain."""
    text = ""
    for message in messages:
        role = "user" if message["role"] == "system" else message["role"]
        text += f"<|{role}|>{message['content']}<|end|>"
    return text + ("<|assistant|>" if opens else "")


def check_last_message(server):
    """A conversation that ends with the assistant goes on with that message."""
    messages = [{"role": "user", "content": "Who are you?"}, {"role": "assistant", "content": "I am the"}]

    def tokens(**more):
        return post(server, "/v1/chat/completions/render", {"messages": messages, **more})[2]["token_ids"]
    opened = post(server, "/v1/chat/completions/render", {"messages": messages[:1]})[2]["token_ids"]
    assert tokens() == tokens(continue_final_message=True)
    assert tokens()[:len(opened)] == opened and len(tokens()) > len(opened)
    assert tokens(add_generation_prompt=True)[-1] == opened[-1] and len(tokens(add_generation_prompt=True)) > len(tokens())
    for content in ("<", "e", "|", "Who are you?", "I am "):
        messages[1]["content"] = content
        want = post(server, "/v1/completions/render", {"prompt": markers(messages[:1], opens=True) + content})[2][0]["token_ids"]
        assert tokens() == want, (content, tokens(), want)
    messages[1]["content"] = "I am the"
    assert tokens(add_generation_prompt=False) == tokens(add_generation_prompt=True)[:-1]
    status, _, got = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 8, "ignore_eos": True, **GREEDY})
    assert status == 200 and got["usage"]["completion_tokens"] == 8 and got["choices"][0]["message"]["content"], got
    status, _, got = post(server, "/v1/chat/completions", {"messages": messages, "continue_final_message": True,
                                                           "add_generation_prompt": True})
    assert status == 400 and got["error"]["param"] == "continue_final_message", got


def check_overflow(server):
    status, _, got = post(server, "/v1/completions", {"prompt": "word " * 4000})
    assert status == 400 and got["error"]["code"] == "context_length_exceeded", got
    # LangChain looks for these words.
    assert got["error"]["message"].startswith("the prompt is too long: "), got
    assert re.search(r"this model's maximum context length is 2048 tokens; the text has \d{4}, policy 'full'", got["error"]["message"]), got


def check_unknown_paths(server):
    """A path that is not served is named, with those that are."""
    for path in ("/v1/rerank", "/v1/audio/speech"):
        status, _, got = post(server, path, {})
        assert status == 404 and f"there is no path '{path}' here" in got["error"]["message"], got
        assert "/v1/chat/completions" in got["error"]["message"], got


def check_system_message(server):
    """A chat's system message stays, as much of it as the policy takes; no request is refused for it."""
    kv = {"policy": "streaming:cap=64"}
    said = [{"role": "user", "content": "Tell me a long story of the sea."}]
    system = [{"role": "system", "content": "You are Bob, who knows the sea."}]
    long_system = [{"role": "system", "content": "You are Bob, who knows the sea. " * 40}]
    for messages, protect in ((system + said, True), (long_system + said, 32), (said, None)):
        status, _, got = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 120, "ignore_eos": True, "kv": kv})
        assert status == 200, got
        found = re.search(r",protect=(\d+)", got["kv"]["policy"])
        assert (found is None) if protect is None else found and (protect is True or int(found[1]) == protect), got["kv"]
        status, _, plan = post(server, "/v1/kv/plan", {"messages": messages, "max_tokens": 120, "kv": kv})
        assert status == 200 and plan["policy"] == got["kv"]["policy"], (plan, got["kv"])
    for policy in ("streaming:cap=64,protect=0", "full"):
        status, _, got = post(server, "/v1/chat/completions", {"messages": system + said, "max_tokens": 4, "kv": {"policy": policy}})
        assert status == 200 and "protect" not in got["kv"]["policy"], got
    status, _, got = post(server, "/v1/chat/completions", {"messages": said, "kv": {"policy": "streaming:cap=64,protect=40"}})
    assert status == 400 and "protect=40 is more than half of the 64 tokens" in got["error"]["message"], got


def check_list_of_prompts(server):
    """Nothing of an answer comes before each prompt is known to fit."""
    body = {"prompt": ["Once", "word " * 4000], "max_tokens": 4, "stream": True}
    status, fields, text = server.ask("POST", "/v1/completions", body)
    assert status == 400 and fields["Content-Type"] == "application/json", (status, text[:200])
    assert "prompt 2 of 2: this model's maximum context length" in json.loads(text)["error"]["message"], text


def check_headers(server):
    status, fields, _ = server.ask("GET", "/health", headers={"X-Request-Id": "abc-1"})
    assert status == 200 and fields["X-Request-Id"] == "abc-1"
    then = email.utils.parsedate_to_datetime(fields["Date"]).timestamp()
    assert abs(then - time.time()) < 3600 and fields["Date"].endswith(" GMT"), fields
    other = [server.ask("GET", "/health", headers={"X-Request-Id": bad})[1]["X-Request-Id"] for bad in ("x" * 200, "a b", "")]
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in other) and len(set(other)) == 3, other
    post(server, "/v1/completions", {"prompt": "Once", "max_tokens": 1}, {"X-Request-Id": "find-me"})
    wait_for(lambda: any('"request_id":"find-me"' in line for line in server.lines), "the log names no request")
    packed = gzip.compress(json.dumps({"prompt": "Once"}).encode())
    status, _, text = server.ask("POST", "/v1/completions", packed, {"Content-Encoding": "gzip"})
    assert status == 415 and "compressed" in json.loads(text)["error"]["message"], (status, text)
    assert server.ask("POST", "/v1/completions", b'{"prompt":"Once","max_tokens":1}', {"Content-Encoding": "identity"})[0] == 200


def check_origins(server):
    """Pages of this machine may read answers, and others where the server says so."""
    asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type, authorization"}

    def preflight(of, origin):
        return of.ask("OPTIONS", "/v1/chat/completions", headers={"Origin": origin, **asks})[:2]

    def read(of, origin):
        return of.ask("GET", "/v1/models", headers={"Origin": origin, "Sec-Fetch-Site": "cross-site"})[:2]
    for origin in ("http://localhost:3000", "http://127.0.0.1:5173", "http://[::1]:80"):
        status, fields = preflight(server, origin)
        assert status == 204 and fields["Access-Control-Allow-Origin"] == origin and "POST" in fields["Access-Control-Allow-Methods"]
        assert fields["Access-Control-Allow-Headers"] == "content-type, authorization" and fields["Vary"] == "Origin"
        status, fields = read(server, origin)
        assert status == 200 and fields["Access-Control-Allow-Origin"] == origin
    foreign = "https://chat.example.com"
    assert preflight(server, foreign)[0] == 405 and "Access-Control-Allow-Origin" not in preflight(server, foreign)[1]
    assert read(server, foreign)[0] == 403
    assert read(server, "https://localhost.example.com")[0] == 403
    connection = server.connect()  # a request with a body passes two gates
    connection.request("POST", "/v1/completions", '{"prompt":"Once","max_tokens":1}', {"Origin": "http://localhost:3000"})
    answer = connection.getresponse()
    assert answer.read() and answer.headers.get_all("Access-Control-Allow-Origin") == ["http://localhost:3000"]
    connection.close()
    with LiveServer(KVASIR, MODEL, "--cors", foreign) as other:
        assert preflight(other, foreign)[0] == 204 and read(other, foreign)[0] == 200
        assert read(other, "https://chat.example.org")[0] == 403
    with LiveServer(KVASIR, MODEL, "--cors", "*") as other:
        status, fields = read(other, "https://chat.example.org")
        assert status == 200 and fields["Access-Control-Allow-Origin"] == "*"


def check_half_closed(server):
    """A client that shuts down its sending side is answered; one that is gone is noticed."""
    for stream in (False, True):
        body = json.dumps({"prompt": "Once", "max_tokens": 200, "ignore_eos": True, "stream": stream, **GREEDY}).encode()
        with socket.create_connection(("127.0.0.1", server.port), 600) as raw:
            raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            raw.shutdown(socket.SHUT_WR)
            got = b""
            while part := raw.recv(65536):
                got += part
        answers = re.findall(rb"HTTP/1.1 (\d+)", got)
        assert answers[-1] == b"200" and set(answers[:-1]) <= {b"100"}, got[:300]
        assert (b"[DONE]" if stream else b'"completion_tokens":200') in got, got[-300:]
    for stream, version in ((False, b"1.1"), (True, b"1.1"), (False, b"1.0"), (True, b"1.0")):
        body = json.dumps({"prompt": "Once", "stream": stream, **ENDLESS}).encode()
        raw = socket.create_connection(("127.0.0.1", server.port), 600)
        raw.sendall(b"POST /v1/completions HTTP/" + version + b"\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        wait_for(lambda: running(server) == 1, "the answer does not begin")
        raw.close()
        wait_for(lambda: running(server) == 0, "an answer without end goes on without its client")


def running(server):
    return float(re.search(r"^kvasir:num_requests_running{[^}]*} (\S+)$", server.ask("GET", "/metrics")[2], re.MULTILINE)[1])


def check_too_many_connections(_):
    with LiveServer(KVASIR, MODEL, "--max-connections-per-address", "3") as server:
        held = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=600) for _ in range(3)]
        for each in held:
            each.request("GET", "/health")
            assert each.getresponse().read()
        status, fields, text = server.ask("GET", "/health")
        assert status == 503 and fields["Retry-After"] == "1", (status, fields)
        assert json.loads(text)["error"]["code"] == "too_many_connections", text
        for each in held:
            each.close()
        wait_for(lambda: server.ask("GET", "/health")[0] == 200, "no place is ever free again")


def check_models_with_a_slash(_):
    with LiveServer(KVASIR, MODEL, "--name", "org/model") as server:
        for path in ("/v1/models/org/model", "/v1/models/org%2Fmodel"):
            status, _, text = server.ask("GET", path)
            assert status == 200 and json.loads(text)["id"] == "org/model", (path, status, text)
        assert server.ask("GET", "/v1/models/org/other")[0] == 404


def main():
    global KVASIR, MODEL
    KVASIR, MODEL = sys.argv[1:3]
    with LiveServer(KVASIR, MODEL, "--log-format", "json") as server:
        for name, check in list(globals().items()):
            if name.startswith("check_") and (len(sys.argv) < 4 or name in sys.argv[3:]):
                began = time.monotonic()
                check(server)
                print(f"{name}: ok ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
