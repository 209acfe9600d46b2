"""Checks the bodies and routes of the API against a real server: api_check.py KVASIR MODEL

Tokens are compared with `kvasir tokenize`, memory with `kvasir plan`, sessions with an answer that was never interrupted.
"""

import http.client
import json
import pathlib
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

from serve_check import Server, events

GREEDY = {"temperature": 0}


def text_of(got):
    return got["choices"][0].get("text", got["choices"][0].get("message", {}).get("content"))


def chunks_of(server, path, body):
    status, _, text = server.ask("POST", path, {**body, "stream": True})
    assert status == 200, (status, text)
    said = events(text)
    assert said[-1] == "[DONE]", said[-1]
    return [json.loads(each) for each in said[:-1]]


def refused(server, path, body, param, status=400):
    got_status, got = server.post(path, body)
    assert got_status == status and got["error"]["param"] == param, (body, got_status, got)
    return got["error"]["message"]


def check_tokens(server):
    """Tokenize, detokenize and render agree with each other, with the command line and with what a request reads."""
    text = "Once upon a time, there was a naïve café. 日本語\n"
    done = subprocess.run([server.kvasir, "tokenize", "-m", server.model, "--ids", "-p", text], check=True,
                          capture_output=True, text=True)
    want = [int(each) for each in done.stdout.split()]
    status, got = server.post("/tokenize", {"prompt": text, "return_token_strs": True})
    assert status == 200 and got["tokens"] == want and got["count"] == len(want), (got, want)
    assert got["max_model_len"] > 0 and len(got["token_strs"]) == len(want)
    assert server.post("/v1/completions/render", {"prompt": [text, "x"]})[1][0]["token_ids"] == want
    assert server.post("/detokenize", {"tokens": want[1:]})[1]["prompt"].strip() == text.strip()
    status, got = server.post("/v1/completions", {"prompt": text, "max_tokens": 1})
    assert got["usage"]["prompt_tokens"] == len(want)
    messages = [{"role": "user", "content": "Who are you?"}]
    rendered = server.post("/v1/chat/completions/render", {"messages": messages})[1]["token_ids"]
    assert rendered == server.post("/tokenize", {"messages": messages})[1]["tokens"]
    # The same answer from messages, and from their tokens.
    status, chat = server.post("/v1/chat/completions", {"messages": messages, "max_tokens": 12, **GREEDY})
    assert chat["usage"]["prompt_tokens"] == len(rendered)
    status, plain = server.post("/v1/completions", {"prompt": rendered, "max_tokens": 12, **GREEDY})
    assert text_of(plain).startswith(text_of(chat)), (plain, chat)
    for body in ({}, {"tokens": "x"}, {"tokens": [-1]}, {"tokens": [1.5]}):
        refused(server, "/detokenize", body, "tokens")
    assert server.post("/detokenize", {"tokens": [2 ** 31 - 1]})[0] == 400
    assert "or 'messages'" in refused(server, "/tokenize", {}, "prompt")
    assert "omit one" in refused(server, "/tokenize", {"prompt": "x", "messages": messages}, "prompt")
    refused(server, "/v1/chat/completions/render", {"messages": []}, "messages")


def check_order(server):
    """A large body is read on the text thread: a stream goes on meanwhile, and other requests are answered."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    connection.request("POST", "/v1/completions", json.dumps(
        {"prompt": "Once", "max_tokens": 10 ** 9, "stream": True, "ignore_eos": True, "kv": {"policy": "streaming:sinks=4,window=60"}}))
    stream = connection.getresponse()
    assert stream.readline().startswith(b"data: ")
    over = threading.Event()

    def read():
        while not over.is_set() and stream.read1(65536):
            pass
        connection.sock.close()

    threading.Thread(target=read, daemon=True).start()
    body = json.dumps({"prompt": "The old man went down to the river. " * 100000}).encode()
    grown = []
    for _ in range(5):  # where this client is held up, the body may be done before the metrics were asked twice
        raw = socket.create_connection(("127.0.0.1", server.port), 600)
        raw.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) +
                    body)
        tokens = []  # of all answers, while the body is read
        while True:
            made = server.sample("generation_tokens_total")
            if select.select([raw], [], [], 0)[0]:
                break
            tokens.append(made)
        got = b""
        while part := raw.recv(1 << 20):
            got += part
        raw.close()
        head, text = got.split(b"\r\n\r\n", 1)
        assert head.startswith(b"HTTP/1.1 200 ") and json.loads(text)["count"] > 500000, (head, text[-100:])
        grown.append(tokens[-1] - tokens[0] if tokens else 0)
        if grown[-1] > 20:
            break
    over.set()
    print(f"  while 3.6 MB were tokenized, a stream had {grown[-1]:.0f} tokens, and the metrics were asked {len(tokens)} times")
    assert grown[-1] > 20, f"the stream stood still: {grown}"


def check_choices(server):
    """Several prompts, n, best_of, logit_bias, seeds."""
    one = [text_of(server.post("/v1/completions", {"prompt": p, "max_tokens": 8, **GREEDY})[1]) for p in ("Once", "The")]
    status, got = server.post("/v1/completions", {"prompt": ["Once", "The"], "n": 2, "max_tokens": 8, **GREEDY})
    assert [c["index"] for c in got["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in got["choices"]] == [one[0], one[0], one[1], one[1]], got
    lists = [server.post("/tokenize", {"prompt": p})[1]["tokens"] for p in ("Once", "The")]
    assert [c["text"] for c in server.post("/v1/completions", {"prompt": lists, "max_tokens": 8, **GREEDY})[1]["choices"]] == one
    chunks = chunks_of(server, "/v1/completions", {"prompt": ["Once", "The"], "max_tokens": 8, **GREEDY})
    for index in (0, 1):
        assert "".join(c["choices"][0]["text"] for c in chunks if c["choices"][0]["index"] == index) == one[index]

    asked = {"prompt": "Once upon", "max_tokens": 6, "seed": 5, "logprobs": 0, "ignore_eos": True}
    status, all_of = server.post("/v1/completions", {**asked, "n": 4})
    status, best = server.post("/v1/completions", {**asked, "n": 2, "best_of": 4})

    def mean(choice):
        values = choice["logprobs"]["token_logprobs"]
        return sum(values) / len(values)

    ranked = sorted(all_of["choices"], key=mean, reverse=True)
    assert len({c["text"] for c in all_of["choices"]}) > 1, "the samples are all alike: this shows nothing"
    assert [c["text"] for c in best["choices"]] == [c["text"] for c in ranked[:2]]
    assert best["usage"]["completion_tokens"] == 24 and [c["index"] for c in best["choices"]] == [0, 1]
    refused(server, "/v1/completions", {"prompt": "x", "n": 3, "best_of": 2}, "best_of")
    refused(server, "/v1/completions", {"prompt": "x", "best_of": 2, "stream": True}, "best_of")

    plain = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1, "logprobs": 5, **GREEDY})[1]
    said = text_of(plain)
    token = server.post("/tokenize", {"prompt": "Once" + said})[1]["tokens"][-1]
    other = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 1, "logit_bias": {str(token): -100}, **GREEDY})[1]
    assert text_of(other) != said, "a banned token came"
    forced = server.post("/v1/completions", {"prompt": "Once", "max_tokens": 5, "logit_bias": {str(token): 100}})[1]
    assert text_of(forced) == said * 5, (forced, said)
    for bias in ({"x": 1}, {"5": 101}, {"5": "1"}, {"-1": 0}, [], {"1000000000": 1}, {str(i): 1 for i in range(1025)}):
        refused(server, "/v1/completions", {"prompt": "x", "logit_bias": bias}, "logit_bias")
    again = [text_of(server.post("/v1/completions", {"prompt": "Once", "max_tokens": 8, "seed": 0})[1]) for _ in range(2)]
    assert again[0] == again[1], "a seed of 0 is a seed"


def check_logprobs(server):
    """Log-probabilities come with their text in streams; echo reports the prompt's."""
    body = {"prompt": "Once upon a time", "max_tokens": 10, "logprobs": 2, **GREEDY}
    whole = server.post("/v1/completions", body)[1]["choices"][0]
    parts = [c["choices"][0] for c in chunks_of(server, "/v1/completions", body)]
    assert sum(1 for p in parts if p["logprobs"] and p["logprobs"]["tokens"]) > 3, "they came all at once"
    for key in ("tokens", "token_logprobs", "text_offset"):
        assert [v for p in parts if p["logprobs"] for v in p["logprobs"][key]] == whole["logprobs"][key], key
    drawn = {**body, "max_tokens": 40, "temperature": 1, "seed": 5, "ignore_eos": True}
    lists = server.post("/v1/completions", drawn)[1]["choices"][0]["logprobs"]
    assert {len(top) for top in lists["top_logprobs"]} == {2, 3}, "a token beside the two likeliest, at times"
    for token, value, top in zip(lists["tokens"], lists["token_logprobs"], lists["top_logprobs"], strict=True):
        assert top[token] == value
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 6, "logprobs": True, "top_logprobs": 3, **GREEDY}
    want = server.post("/v1/chat/completions", chat)[1]["choices"][0]["logprobs"]["content"]
    parts = [c["choices"][0] for c in chunks_of(server, "/v1/chat/completions", chat)]
    got = [each for p in parts if p["logprobs"] for each in p["logprobs"]["content"]]
    assert got == want and all(len(each["top_logprobs"]) == 3 for each in got)

    # What was generated has the same probabilities when it is read as a prompt.
    tokens = server.post("/tokenize", {"prompt": "Once upon a time"})[1]["tokens"]
    answer = server.post("/v1/completions", {**body, "prompt": tokens})[1]
    text = text_of(answer)
    full = server.post("/tokenize", {"prompt": "Once upon a time" + text})[1]["tokens"]
    echo = server.post("/v1/completions", {"prompt": full, "max_tokens": 0, "echo": True, "logprobs": 2})[1]["choices"][0]
    lists = echo["logprobs"]
    assert lists["token_logprobs"][0] is None and len(lists["tokens"]) == len(full)
    assert all(value <= 0 for value in lists["token_logprobs"][1:])
    if full[:len(tokens)] == tokens:
        generated = answer["choices"][0]["logprobs"]["token_logprobs"]
        read = lists["token_logprobs"][len(tokens):]
        same = [abs(a - b) < 1e-4 for a, b in zip(generated, read)]
        assert len(full) - len(tokens) < len(generated) or all(same), (generated, read)
    with_text = server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 3, "echo": True, **GREEDY})[1]
    assert text_of(with_text).startswith("Once upon")
    refused(server, "/v1/completions", {"prompt": "x", "echo": True, "logprobs": 1, "stream": True}, "echo")
    # Where the text shows a token, it stands at the token's offset; the token in front and its space are not shown.
    tokens = server.post("/tokenize", {"prompt": "Once upon"})[1]["tokens"]
    for prompt in ("Once upon", " Once upon a time", "<s> is text here", "naïve café, 日本語", tokens, tokens[1:]):
        choice = server.post("/v1/completions", {"prompt": prompt, "max_tokens": 4, "echo": True, "logprobs": 0,
                                                 **GREEDY})[1]["choices"][0]
        text, lists = choice["text"], choice["logprobs"]
        offsets = lists["text_offset"]
        assert offsets[0] == 0 and offsets == sorted(offsets) and offsets[-1] <= len(text), (prompt, choice)
        for token, begin, end in zip(lists["tokens"], offsets, offsets[1:] + [len(text)]):
            part = token.startswith("bytes:")
            whole = part or token.endswith(text[begin:end])
            assert whole and (token != text[begin:end]) <= (part or token in ("<s>", " ") or token[0] == " "), (prompt, choice)
        if isinstance(prompt, str):
            begin = len(offsets) - 4
            assert offsets[begin] == len(prompt), "the answer begins behind the prompt"
    # A control token takes no place in the text.
    marker = server.post("/tokenize", {"prompt": "x"})[1]["tokens"][0]
    assert server.post("/tokenize", {"prompt": "x", "add_special_tokens": False})[1]["tokens"][0] != marker
    choice = server.post("/v1/completions", {"prompt": "Once upon", "max_tokens": 3, "logprobs": 0, "ignore_eos": True,
                                             "logit_bias": {str(marker): 100}, **GREEDY})[1]["choices"][0]
    assert choice["text"] == "" and choice["logprobs"]["text_offset"] == [0, 0, 0], choice


def check_kv(server):
    """The kv object, hints, limits that the server sets, overflow."""
    status, got = server.post("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 40, "ignore_eos": True,
                                                  "kv": {"policy": "streaming:sinks=4,window=20", "pin": True, "ttl": 5.5, "bypass": True}})
    kv = got["kv"]
    assert status == 200 and kv["policy"].startswith("streaming") and kv["kept"] < kv["seen"], kv
    for field in ("codec", "cached", "cache_miss", "bytes", "preemptions", "finish_reason"):
        assert field in kv, field
    assert kv["finish_reason"] == "length" and "cached_tokens" in got["usage"]["prompt_tokens_details"]
    for bad, param in (({"policy": 5}, "kv.policy"), ({"policy": "nonsense"}, "kv.policy"), ({"ttl": -1}, "kv.ttl"),
                       ({"pin": "yes"}, "kv.pin"), ({"bypass": 1}, "kv.bypass"), ({"polcy": "full"}, "kv")):
        refused(server, "/v1/completions", {"prompt": "x", "kv": bad}, param)
    refused(server, "/v1/completions", {"prompt": "x", "kv": []}, "kv")

    def action(kind, **more):
        return {"action_id": kind + "-1", "action_type": kind, "action_version": "0.1", "payload": more}

    hints = {"protocol_version": "0.1", "message_id": "m1",
             "actions": [action("pin"), action("retain", ttl_seconds=60), action("demote"), action("prefetch"), action("dance")]}
    status, got = server.post("/v1/completions", {"prompt": "x", "max_tokens": 1, "kv_hints": hints})
    assert status == 200, got
    assert [a["outcome"] for a in got["kv_hints"]["actions"]] == ["applied", "applied", "no_op", "no_op", "ignored"]
    assert all("Redis" in a["reason"] for a in got["kv_hints"]["actions"][2:4]), got["kv_hints"]
    for bad in ({}, 5, {"protocol_version": "0.1"}, {**hints, "actions": [5]}, {**hints, "actions": [{"action_id": "x"}]},
                {**hints, "actions": [action("retain", ttl_seconds="long")]}):
        refused(server, "/v1/completions", {"prompt": "x", "kv_hints": bad}, "kv_hints")

    # Without max_tokens the answer says what the limit is; a text that fills the context says that it did.
    model = json.loads(server.ask("GET", "/v1/models")[2])["data"][0]
    assert json.loads(server.ask("GET", "/v1/models/m")[2]) == model and server.ask("GET", "/v1/models/x")[0] == 404
    messages = [{"role": "user", "content": "Hi"}]
    status, got = server.post("/v1/chat/completions", {"messages": messages, "kv": {"policy": "full"}, "stop": ["e", "a"], **GREEDY})
    assert status == 200 and 0 < got["kv"]["max_tokens"] <= model["max_model_len"] - got["usage"]["prompt_tokens"], got
    assert "max_tokens" not in server.post("/v1/completions", {"prompt": "x", "max_tokens": 1})[1]["kv"]
    status, got = server.post("/v1/completions", {"prompt": [100] * (model["max_model_len"] - 5), "max_tokens": 50,
                                                  "ignore_eos": True, "kv": {"policy": "full"}})
    assert status == 200 and got["kv"]["finish_reason"] == "context" and got["choices"][0]["finish_reason"] == "length", got
    status, got = server.post("/v1/completions", {"prompt": [100] * (model["max_model_len"] + 5), "kv": {"policy": "full"}})
    assert status == 400 and got["error"]["code"] == "context_length_exceeded", got


def check_quality(server):
    """A promise of quality: what the answer says of it, its plan, and what is refused."""
    kv = {"policy": "streaming:sinks=4,window=20", "quality": {"kl": 1e-4, "every": 16, "stride": 4}}
    body = {"prompt": "Once upon a time there was", "max_tokens": 60, "ignore_eos": True, "seed": 3, "kv": kv}
    status, got = server.post("/v1/completions", body)
    assert status == 200, got
    said = got["kv"]["quality"]
    assert said["kl_bound"] == 1e-4 and said["checks"] == 3 and said["compared"] == 13 and said["unchecked"] == 12, said
    assert said["budgets"][0] == [0, 20] and said["budgets"][-1][1] == said["budget"] > 20, said
    assert said["held"] == (said["kl_mean"] <= 1e-4) and 0 < said["kl_mean"] <= said["kl_max"], said
    assert f"window={said['budget']}" in got["kv"]["policy"], got["kv"]
    for field in ("shadow_tokens", "reread_tokens", "shadow_seconds", "shadow_bytes", "rows_bytes"):
        assert said[field] > 0, (field, said)
    again = server.post("/v1/completions", body)[1]
    assert text_of(again) == text_of(got) and again["kv"]["quality"]["budgets"] == said["budgets"]
    assert again["kv"]["quality"]["kl_mean"] == said["kl_mean"]
    # Without a check nothing is known, and nothing is claimed.
    short = server.post("/v1/completions", {**body, "max_tokens": 8})[1]["kv"]["quality"]
    assert short["held"] is None and short["kl_mean"] is None and short["unchecked"] == 8, short
    assert "quality" not in server.post("/v1/completions", {**body, "kv": {}})[1]["kv"]
    status, plan = server.post("/v1/kv/plan", {"prompt_tokens": 300, "max_tokens": 60, "kv": kv})
    assert status == 200 and plan["fits"] and plan["quality_bytes"] > said["rows_bytes"], plan
    assert plan["kv_bytes"] > plan["quality_bytes"] and plan["max_tokens_possible"] > 60, plan
    for bad, param in (({"kl": 0}, "kv.quality"), ({"kl": "x"}, "kv.quality"), ({}, "kv.quality"), (5, "kv.quality"),
                       ({"kl": 1, "stride": 300}, "kv.quality"), ({"kl": 1, "evry": 5}, "kv.quality"),
                       ({"kl": 1, "every": 1.5}, "kv.quality"), ({"kl": 1, "most": 4}, "kv.quality")):
        message = refused(server, "/v1/completions", {**body, "kv": {**kv, "quality": bad}}, param)
        assert message is None or len(message.splitlines()) == 1
    refused(server, "/v1/completions", {**body, "kv": {**kv, "policy": "full"}}, "kv.policy")
    refused(server, "/v1/completions", {**body, "max_tokens": 10 ** 6}, "max_tokens")
    refused(server, "/v1/completions", {**body, "n": 2}, "kv.quality")


def check_plan(server):
    for policy, prompt, more in (("full", 300, 100), ("streaming:sinks=4,window=60", 700, 200), ("h2o:budget=128", 300, 50)):
        done = subprocess.run([server.kvasir, "plan", "-m", server.model, "--json", "--kv", policy, "--ctx",
                               str(prompt + more), "--prompt", str(prompt)], check=True, capture_output=True, text=True)
        want = json.loads(done.stdout)
        status, got = server.post("/v1/kv/plan", {"prompt_tokens": prompt, "max_tokens": more, "kv": {"policy": policy}})
        assert status == 200, got
        for field in ("policy", "tokens", "kv_bytes", "kv_pages", "kv_exact", "kv_page_bytes", "kv_table_bytes",
                      "kv_open_pages", "kv_open_page_bytes"):
            assert got[field] == want[field], (policy, field, got[field], want[field])
        assert got["fits"] and got["kv_free"] <= got["kv_budget"]
    status, got = server.post("/v1/kv/plan", {"prompt_tokens": 10 ** 6, "max_tokens": 1, "kv": {"policy": "full"}})
    assert status == 200 and not got["fits"] and got["refusal"], got
    status, got = server.post("/v1/kv/plan", {"messages": [{"role": "user", "content": "Hi"}]})
    assert status == 200 and got["prompt"] > 0
    refused(server, "/v1/kv/plan", {"prompt_tokens": 0}, "prompt_tokens")
    assert "'messages'" in refused(server, "/v1/kv/plan", {}, "prompt_tokens")
    refused(server, "/v1/kv/plan", {"prompt_tokens": 300, "prompt": "a"}, "prompt_tokens")
    refused(server, "/v1/kv/plan", {"prompt_tokens": 5, "kv": {"policy": "nonsense"}}, "kv.policy")
    for path in ("/v1/kv/plan", "/tokenize", "/v1/completions/render", "/detokenize"):
        assert server.post(path, {"prompt": "a", "tokens": [1], "model": "other"})[1]["error"]["code"] == "model_not_found", path


def check_encoded_plan(kvasir, model):
    """With encoded pages the plan is never exceeded, and equals the peak where it says so: whichever codec is the server's own."""
    for own, others, asks in (("q8", "q4,recent=64", (None, "q4,recent=64")), ("f16", "q4,q8", ("q8",))):
        server = Server(kvasir, model, "--kv-type", own, "--kv-types", others, "--kv-memory", "60MiB")
        try:
            for codec in asks:
                kv_of = {"codec": codec} if codec else {}
                for policy in ("window:size=100", "window:size=2", "streaming:cap=33", "full"):
                    for prompt, more in ((760, 10), (33, 200)):
                        tokens = server.post("/tokenize", {"prompt": "The old man went down to the river. " * 200})[1]["tokens"][:prompt]
                        asked = {"max_tokens": more, "kv": {"policy": policy, **kv_of}}
                        got = server.post("/v1/kv/plan", {**asked, "prompt_tokens": prompt})[1]
                        kv = server.post("/v1/completions", {**asked, "prompt": tokens, "ignore_eos": True,
                                                             "kv": {"policy": policy, "bypass": True, **kv_of}})[1]["kv"]
                        peak = kv["bytes_peak"]
                        assert kv["codec"] == got["codec"] == (codec or own), (kv, got)
                        assert peak <= got["kv_bytes"] <= 1.5 * peak, (codec, policy, prompt, peak, got)
                        assert not got["kv_exact"] or peak == got["kv_bytes"] - got["policy_bytes"], (codec, policy, prompt, peak, got)
                        assert got["kv_open_pages"] > 0
                        assert got["kv_bytes"] == sum(got[a] * got[b] for a, b in (("kv_pages", "kv_page_bytes"), ("kv_open_pages", "kv_open_page_bytes"))) + got["kv_table_bytes"] + got["policy_bytes"], got
            assert server.end() == 0
        finally:
            server.process.kill()


def check_codecs(kvasir, model):
    """Requests of several codecs at once have the answers that they have alone; no prefix of one is continued in another."""
    server = Server(kvasir, model, "--kv-types", "q8,k=q8,v=q4", "--kv-types", "q2")
    try:
        text = "The old man went down to the river, and it was a long way down. " * 12
        kinds = [(codec, policy) for codec in ("f16", "q8", "k=q8,v=q4", "q2") for policy in ("full", "h2o:budget=64", "streaming:cap=64")]
        body = {"prompt": text, "max_tokens": 24, "ignore_eos": True, "logprobs": 3, **GREEDY}

        def ask(kind, bypass):
            status, got = server.post("/v1/completions", {**body, "kv": {"codec": kind[0], "policy": kind[1], "bypass": bypass}})
            assert status == 200 and got["kv"]["codec"] == kind[0], got
            return got

        alone = {kind: ask(kind, True) for kind in kinds}
        assert len({text_of(alone[kind]) for kind in kinds if kind[1] == "full"}) > 1, "codecs differ"
        together = {}
        threads = [threading.Thread(target=lambda k=kind: together.update({k: ask(k, True)})) for kind in kinds]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        for kind in kinds:
            assert together[kind]["choices"] == alone[kind]["choices"], kind
            assert together[kind]["kv"]["bytes"] == alone[kind]["kv"]["bytes"], kind
        for codec, miss in (("f16", "unknown"), ("q8", "codec"), ("q2", "codec")):
            for again in (False, True):
                got = ask((codec, "full"), False)
                assert got["choices"] == alone[(codec, "full")]["choices"], codec
                assert (got["kv"]["cached"] > 0) == again and (again or got["kv"]["cache_miss"] == miss), (codec, got["kv"])
        message = refused(server, "/v1/completions", {**body, "kv": {"codec": "q4"}}, "kv.codec")
        assert message == "the KV codec 'q4' is not allowed here; choose one of these: f16; q8; k=q8,v=q4; q2", message
        assert "'x' is no KV codec; choose one of these" in refused(server, "/v1/kv/plan", {"prompt_tokens": 5, "kv": {"codec": "x"}}, "kv.codec")
        assert "string" in refused(server, "/v1/completions", {**body, "kv": {"codec": 8}}, "kv.codec")
        assert server.end() == 0
    finally:
        server.process.kill()


def check_fields(server):
    messages = [{"role": "user", "content": "x"}]
    for field, value in (("tools", [{}]), ("response_format", {"type": "xml"}), ("grammar", "root ::= ("), ("audio", {"voice": "x"}),
                         ("modalities", ["audio"]), ("tool_choice", "required"), ("chat_template_kwargs", []),
                         ("stop", ["x"] * 17), ("stop", ["x" * 2000]), ("user", 5), ("priority", 10 ** 6),
                         ("cache_salt", 5), ("min_p", 2), ("top_k", -2), ("repetition_penalty", 0)):
        refused(server, "/v1/chat/completions", {"messages": messages, "max_tokens": 1, field: value}, field)
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]
    refused(server, "/v1/chat/completions", {"messages": image}, "messages")
    refused(server, "/v1/completions", {"prompt": ["x"] * 65}, "prompt")
    refused(server, "/v1/completions", {"prompt": ["x", 5]}, "prompt")
    refused(server, "/v1/completions", {"prompt": ""}, "prompt")
    assert "must be a string" in refused(server, "/v1/completions", {"prompt": {}}, "prompt")
    for token in (-1, 99999999999999999999):
        assert "outside the vocabulary" in refused(server, "/v1/completions", {"prompt": [token]}, "prompt")
    assert "1e+308" in refused(server, "/v1/completions", {"prompt": "x", "temperature": 1e308}, "temperature")
    fine = {"messages": messages, "max_tokens": 1, "user": "me", "priority": 3, "cache_salt": "s", "unknown": [1],
            "response_format": {"type": "text"}, "tools": [], "tool_choice": "auto", "top_k": -1, "min_p": 0.1}
    status, got = server.post("/v1/chat/completions", fine)
    assert status == 200, got


def check_template(kvasir, model):
    """Variables of a template reach it; one that fails is a 400 that names the line."""
    with tempfile.NamedTemporaryFile("w", suffix=".jinja") as file:
        file.write("{% for m in messages %}\n{{ m.content }}{% endfor %}\n"
                   "{% if style is defined %}\n{{ style.name + deep[0] }}{% if fail %}\n{{ raise_exception('not so') }}{% endif %}"
                   "{% endif %}\n")
        file.flush()
        server = Server(kvasir, model, "--chat-template", file.name)
        try:
            body = {"messages": [{"role": "user", "content": "Hi"}]}
            plain = server.post("/v1/chat/completions/render", body)[1]["token_ids"]
            more = {**body, "chat_template_kwargs": {"style": {"name": "grand"}, "deep": ["ly"], "fail": False}}
            styled = server.post("/v1/chat/completions/render", more)[1]["token_ids"]
            said = server.post("/detokenize", {"tokens": styled})[1]["prompt"]
            assert "grandly" in said and styled != plain, said
            status, got = server.post("/v1/chat/completions", {**more, "max_tokens": 1})
            assert status == 200 and got["usage"]["prompt_tokens"] == len(styled)
            more["chat_template_kwargs"]["fail"] = True
            for path in ("/v1/chat/completions", "/v1/chat/completions/render", "/tokenize"):
                status, got = server.post(path, more)
                assert status == 400 and "line 5" in got["error"]["message"] and "not so" in got["error"]["message"], got
            body["chat_template_kwargs"] = {"messages": []}
            refused(server, "/v1/chat/completions", body, "chat_template_kwargs")
            assert server.end() == 0
        finally:
            server.process.kill()


def check_sessions(kvasir, model):
    """A session that was saved and restored, across a restart too, gives the answer of one that never stopped."""
    turns = ["My name is Ann.", "What is my name?", "Tell me more."]
    run = subprocess.run([kvasir, "run", "-m", model, "--temp", "0", "-n", "12", "--chat", "--json", "-p", turns[0]],
                         check=True, capture_output=True, text=True)
    first = json.loads(run.stdout)["text"]
    with tempfile.TemporaryDirectory() as folder:
        server = Server(kvasir, model, "--sessions", folder)

        def say(turn, name="ann", **more):
            status, got = server.post("/v1/chat/completions", {
                "messages": [{"role": "user", "content": turns[turn]}], "max_tokens": 12, "session": name, **GREEDY, **more})
            assert status == 200, got
            return got

        try:
            got = say(0)
            assert text_of(got) == first and got["session"]["saved"] and not got["session"]["restored"], (got, first)
            tokens = got["session"]["tokens"]
            # The same two turns in a session of its own, to compare with.
            say(0, "twin")
            twin = [say(1, "twin"), say(2, "twin")]
            server.process.kill()  # as hard as it gets: the session is on disk
            server.process.wait()
            server = Server(kvasir, model, "--sessions", folder)
            status, got = server.post("/v1/sessions/ann", {})
            assert status == 200 and got["session"]["restored"] and got["session"]["tokens"] == tokens, got
            got = say(1)
            assert got["session"]["restored"] and got["session"]["restored_tokens"] == tokens
            assert text_of(got) == text_of(twin[0]), (got, twin[0])
            chunks = chunks_of(server, "/v1/chat/completions", {
                "messages": [{"role": "user", "content": turns[2]}], "max_tokens": 12, "session": "ann", **GREEDY})
            said = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks if c["choices"])
            assert said == text_of(twin[1]), (said, twin[1])
            assert any(c.get("session", {}).get("saved") for c in chunks)

            # Text alone, read in two requests and continued, as in one.
            whole = server.post("/v1/completions", {"prompt": "Once upon a time there was", "max_tokens": 10, **GREEDY})[1]
            status, made = server.post("/v1/sessions/tale", {"prompt": "Once upon a time"})
            assert status == 200 and made["session"]["saved"] and "choices" not in made, made
            status, got = server.post("/v1/completions", {"prompt": " there was", "session": "tale", "max_tokens": 10, **GREEDY})
            assert status == 200 and text_of(got) == text_of(whole), (got, whole)

            listed = json.loads(server.ask("GET", "/v1/sessions")[2])["data"]
            assert [each["id"] for each in listed] == ["ann", "tale", "twin"] and all(each["bytes"] > 0 for each in listed)
            assert server.ask("DELETE", "/v1/sessions/twin")[0] == 200
            assert server.ask("DELETE", "/v1/sessions/twin")[0] == 404 and server.ask("GET", "/v1/sessions/twin")[0] == 404
            assert server.post("/v1/sessions/twin", {})[0] == 404
            for name in ("..", ".", "a.b", "%2e%2e", "x" * 65, "a%2fb", "a b", "é"):
                assert server.ask("GET", "/v1/sessions/" + name.replace(" ", "%20").replace("é", "%C3%A9"))[0] in (400, 404)
                refused(server, "/v1/completions", {"prompt": "x", "session": name}, "session")
            refused(server, "/v1/completions", {"prompt": "x", "session": "tale", "n": 2}, "session")
            refused(server, "/v1/completions", {"prompt": "x", "session": "tale", "kv": {"policy": "window:size=20"}}, "kv.policy")

            # A damaged file is refused, and stays as it is; one of another kind too.
            file = next(pathlib.Path(folder).rglob("tale.session"))
            good = file.read_bytes()
            file.write_bytes(good[:-100] + b"x" * 100)
            status, got = server.post("/v1/completions", {"prompt": "x", "session": "tale"})
            assert status == 500 and "damaged" in got["error"]["message"], (status, got)
            assert file.read_bytes()[-100:] == b"x" * 100
            file.write_bytes(good)
            assert server.post("/v1/sessions/tale", {})[0] == 200

            # One request at a time has a session; a client that leaves does not change it.
            status, got = server.post("/v1/sessions/endless", {"prompt": "x", "kv": {"policy": "streaming:cap=64"}})
            assert status == 200, got
            endless = next(pathlib.Path(folder).rglob("endless.session"))
            good = endless.read_bytes()
            with socket.create_connection(("127.0.0.1", server.port), 300) as raw:
                body = json.dumps({"prompt": "x", "session": "endless", "max_tokens": 10 ** 9, "stream": True,
                                   "ignore_eos": True}).encode()
                raw.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
                got = b""
                while b"data: " not in got:
                    got += raw.recv(10000)
                status, got = server.post("/v1/completions", {"prompt": "x", "session": "endless"})
                assert status == 409 and got["error"]["code"] == "session_busy", (status, got)
            for _ in range(6000):
                status, got = server.post("/v1/sessions/endless", {})
                if status != 409:
                    break
                time.sleep(0.02)
            assert status == 200, got
            assert endless.read_bytes() == good, "a turn whose client left was saved"
            assert server.end() == 0
        finally:
            server.process.kill()


def main(kvasir, model):
    server = Server(kvasir, model)
    try:
        for check in (check_tokens, check_order, check_choices, check_logprobs, check_kv, check_quality, check_plan, check_fields):
            began = time.time()
            check(server)
            print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)
        assert server.end() == 0
    finally:
        server.process.kill()
    for check in (check_template, check_encoded_plan, check_codecs, check_sessions):
        began = time.time()
        check(kvasir, model)
        print(f"{check.__name__}: {time.time() - began:.1f} s", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
