"""Drafts change no answer, and say what came of them, against a real server: drafts_check.py KVASIR MODEL LARGER

MODEL drafts for LARGER, which has the same vocabulary.
"""

import json
import subprocess
import sys
import threading

from live_server import LiveServer

TALE = "The fox ran to the old well. The fox looked into the old well. "
ASK = {"prompt": TALE * 6, "max_tokens": 80, "ignore_eos": True, "logprobs": 1}


def answer(server, **more):
    status, got = server.complete(**{**ASK, **more})
    assert status == 200, got
    return got


def told(got):
    choice = got["choices"][0]
    return choice["text"], choice["logprobs"], choice["finish_reason"], got["usage"]["completion_tokens"]


def check_answers(server):
    for more in ({}, {"temperature": 0.7, "seed": 5}, {"stop": ["looked into"]}, {"kv": {"policy": "streaming:cap=64"}},
                 {"kv": {"policy": "snapkv:budget=64,window=8"}}, {"kv": {"policy": "full", "codec": "q4"}}):
        plain, drafted = answer(server, **more), answer(server, draft="ngram:match=2", **more)
        assert told(plain) == told(drafted), more
        assert "draft" not in plain["kv"]
        report = drafted["kv"]["draft"]
        assert report["refused"] is None and 0 <= report["came_true"] <= report["drafted"], report
        by_model = answer(server, draft="policy:streaming:cap=32", **more)
        assert told(plain) == told(by_model), more
    drafted = answer(server, draft="ngram")
    assert drafted["kv"]["draft"]["came_true"] > 20, drafted["kv"]
    drafted = answer(server, draft="policy:streaming:cap=64")
    assert drafted["kv"]["draft"]["came_true"] > 5, drafted["kv"]
    assert answer(server, draft="off")["kv"].get("draft") is None


def check_refusals(server):
    refused = answer(server, draft="ngram", kv={"policy": "h2o:budget=64"})["kv"]["draft"]
    assert refused["drafted"] == 0 and "policy" in refused["refused"], refused
    refused = answer(server, draft="policy:window:size=32", kv={"policy": "snapkv:budget=64,window=8"})["kv"]["draft"]
    assert refused["drafted"] == 0 and "single tokens" in refused["refused"], refused
    for wrong in ("more", "ngram:most=9", "ngram:x=1", "policy:", "policy:h2o:budget=64", "policy:streaming:cap=x", "model", "model.gguf", 3):
        status, got = server.complete(**{**ASK, "draft": wrong})
        assert status == 400 and got["error"]["param"] == "draft", got


def check_grammars(server, draft):
    """Texts under grammars have drafts, which change nothing."""
    drafted = 0
    for more in ({"guided_regex": "(the fox ran to the old well, ){3}[a-z ]{20}"},
                 {"guided_json": {"type": "object", "required": ["name", "age"], "properties": {
                     "name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}}}):
        for temperature in (0, 0.8):
            body = {**more, "temperature": temperature, "seed": 3, "ignore_eos": False}
            plain, other = answer(server, **body), answer(server, draft=draft, **body)
            assert told(plain) == told(other), body
            assert other["kv"]["draft"]["refused"] is None, other["kv"]["draft"]
            drafted += other["kv"]["draft"]["drafted"]
    assert drafted > 0


def check_model(kvasir, model, larger):
    """A smaller model drafts, within the KV memory, which the metrics account for."""
    memory = 64 << 20
    with LiveServer(kvasir, larger, "--kv-types", "q4", "--draft-model", model, "--kv-memory", str(memory)) as server:
        for more in ({}, {"temperature": 0.7, "seed": 5}, {"stop": ["looked into"]}, {"kv": {"policy": "streaming:cap=64"}},
                     {"kv": {"policy": "snapkv:budget=64,window=8"}}, {"kv": {"policy": "full", "codec": "q4"}}, {"n": 3}):
            plain, drafted = answer(server, **more), answer(server, draft="model:most=4", **more)
            assert told(plain) == told(drafted), more
            assert drafted["kv"]["draft"]["refused"] is None, drafted["kv"]["draft"]
        drafted = answer(server, draft="model")["kv"]["draft"]
        assert drafted["came_true"] > 5, drafted
        check_grammars(server, "model")
        plan = json.loads(server.ask("POST", "/v1/kv/plan", {"prompt_tokens": 100, "max_tokens": 60, "draft": "model"})[2])
        assert 0 < plan["draft_kv_bytes"] < memory and plan["fits"], plan
        assert json.loads(server.ask("POST", "/v1/kv/plan", {"prompt_tokens": 100})[2])["draft_kv_bytes"] == 0
        # What the metrics say adds up while a text is written.
        stream = server.stream(draft="model", max_tokens=400)
        held = 0
        for line in stream:
            if line.startswith(b"data: {") and held == 0:
                held = server.metric("kvasir:kv_draft_bytes")
        planned = json.loads(server.ask("POST", "/v1/kv/plan", {"prompt_tokens": 10, "max_tokens": 400, "draft": "model"})[2])
        assert 0 < held <= planned["draft_kv_bytes"], (held, planned)
        assert server.metric("kvasir:kv_draft_bytes") == 0
        assert server.metric("kvasir:kv_peak_bytes") <= memory
        offline = json.loads(subprocess.check_output([kvasir, "plan", "-m", larger, "--draft", model, "--json"]))
        assert server.metric("kvasir:draft_weight_bytes") == offline["draft_weight_bytes"] > 0
        assert offline["draft_kv_bytes"] > 0
        check_crowd(server, "model")
        server.end()
    with LiveServer(kvasir, larger, "--draft", model) as server:
        assert answer(server)["kv"]["draft"]["drafted"] > 0
        server.end()
    for command in ("run", "serve"):
        refused = subprocess.run([kvasir, command, "-m", larger, "--draft", __file__, *(["-p", "x"] if command == "run" else [])],
                                 stderr=subprocess.PIPE, text=True)
        assert refused.returncode == 2 and refused.stderr.count("\n") == 1 and "GGUF" in refused.stderr, refused


def check_run(kvasir, model, larger):
    """`run` writes the same text, log-probabilities and cache, whoever drafts."""
    for more in ((), ("--temp", "0.8"), ("--kv", "streaming:cap=64"), ("--kv", "snapkv:budget=64,window=8"),
                 ("--kv-type", "q4"), ("--samples", "3"), ("--regex", "[a-z ,.]{90}")):
        command = [kvasir, "run", "-m", larger, "--raw", "-p", TALE * 6, "-n", "100", "--json", "--logprobs", "1", "--temp",
                   "0", "--seed", "5", *more]
        if more[:1] == ("--temp",) or more[:1] == ("--samples",):
            command = [part for at, part in enumerate(command) if part != "--temp" and command[at - 1] != "--temp"] + ["--temp", "0.8"]
        got = [json.loads(subprocess.check_output(command + draft, stderr=subprocess.DEVNULL))
               for draft in ([], ["--draft", model])]
        for field in ("text", "logprobs", "tokens", "finish_reason"):
            assert got[0].get(field) == got[1].get(field), (more, field)
        for field in ("policy", "seen", "kept", "kept_max", "bytes"):
            assert got[0]["kv"][field] == got[1]["kv"][field], (more, field)
        if "samples" in got[0]:
            assert [s["text"] for s in got[0]["samples"]] == [s["text"] for s in got[1]["samples"]], more
        else:
            assert got[1]["draft"]["drafted"] > 0, (more, got[1]["draft"])


def check_crowd(server, draft="ngram:match=1"):
    """Requests side by side, some with drafts, have the answers that they have alone."""
    bodies = [{"prompt": TALE * (1 + i % 4), "seed": i, "temperature": 0.5, **({"draft": draft} if i % 3 == 1 else {"draft": "policy:streaming:cap=24"} if i % 3 else {})} for i in range(12)]
    alone = [answer(server, **{**body, "draft": "off"}) for body in bodies]
    got = [None] * len(bodies)

    def ask(i):
        got[i] = answer(server, **bodies[i])

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(bodies))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [told(one) for one in got] == [told(one) for one in alone]


def check_stream(server):
    plain = answer(server)["choices"][0]["text"]
    connection = server.connect()
    connection.request("POST", "/v1/completions", json.dumps({**ASK, "temperature": 0, "draft": "ngram", "stream": True}))
    text = ""
    for line in connection.getresponse():
        if line.startswith(b"data: {"):
            text += "".join(choice["text"] for choice in json.loads(line[6:])["choices"])
    assert text == plain


def main(kvasir, model, larger):
    with LiveServer(kvasir, model, "--kv-types", "q4") as server:
        check_answers(server)
        check_refusals(server)
        check_stream(server)
        check_crowd(server)
        check_grammars(server, "ngram:match=1")
        check_grammars(server, "policy:streaming:cap=48")
        drafted, true = (server.metric(f"kvasir:spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted"))
        assert drafted > true > 20, (drafted, true)
        server.end()
    with LiveServer(kvasir, model, "--draft", "ngram") as server:
        assert answer(server)["kv"]["draft"]["came_true"] > 20
        assert "draft" not in answer(server, draft="off")["kv"]
        server.end()
    check_model(kvasir, model, larger)
    check_run(kvasir, model, larger)


if __name__ == "__main__":
    main(*sys.argv[1:])
