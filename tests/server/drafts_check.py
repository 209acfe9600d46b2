"""Drafts change no answer, and say what came of them, against a real server: drafts_check.py KVASIR MODEL"""

import json
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
    assert "grammar" in answer(server, draft="ngram", logprobs=None, ignore_eos=False, guided_regex="[a-z ]{20}")["kv"]["draft"]["refused"]
    refused = answer(server, draft="policy:window:size=32", kv={"policy": "snapkv:budget=64,window=8"})["kv"]["draft"]
    assert refused["drafted"] == 0 and "single tokens" in refused["refused"], refused
    for wrong in ("more", "ngram:most=9", "ngram:x=1", "policy:", "policy:h2o:budget=64", "policy:streaming:cap=x", 3):
        status, got = server.complete(**{**ASK, "draft": wrong})
        assert status == 400 and got["error"]["param"] == "draft", got


def check_crowd(server):
    """Requests side by side, some with drafts, have the answers that they have alone."""
    bodies = [{"prompt": TALE * (1 + i % 4), "seed": i, "temperature": 0.5, **({"draft": "ngram:match=1"} if i % 3 == 1 else {"draft": "policy:streaming:cap=24"} if i % 3 else {})} for i in range(12)]
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


def main(kvasir, model):
    with LiveServer(kvasir, model, "--kv-types", "q4") as server:
        check_answers(server)
        check_refusals(server)
        check_stream(server)
        check_crowd(server)
        drafted, true = (server.metric(f"kvasir:spec_decode_num_{name}_tokens_total") for name in ("draft", "accepted"))
        assert drafted > true > 20, (drafted, true)
        server.end()
    with LiveServer(kvasir, model, "--draft", "ngram") as server:
        assert answer(server)["kv"]["draft"]["came_true"] > 20
        assert "draft" not in answer(server, draft="off")["kv"]
        server.end()


if __name__ == "__main__":
    main(*sys.argv[1:])
