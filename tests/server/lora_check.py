"""LoRA adapters over HTTP: lora_check.py KVASIR MODEL ADAPTER

Each request chooses; the log-probabilities are those of a server that has only this choice, whoever runs beside.
"""

import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile

from live_server import LiveServer, refused

PROMPT = {"prompt": "0123456789012345678901234567890123456789", "max_tokens": 24, "ignore_eos": True, "logprobs": 2}


def logprobs(server, **body):
    status, answer = server.complete(**{**PROMPT, **body})
    assert status == 200, answer
    return answer["choices"][0]["logprobs"]["token_logprobs"], answer["usage"]["prompt_tokens_details"]["cached_tokens"]


def adapters(server, path="/lora-adapters"):
    status, _, text = server.ask("GET", path)
    assert status == 200, text
    return json.loads(text)


def main(kvasir, model, adapter):
    expected = {}
    for name, options in {"none": (), "whole": ("--lora", adapter), "half": ("--lora", adapter + ":0.5"),
                          "both": ("--lora", adapter, "--lora", adapter + ":-0.25")}.items():
        with LiveServer(kvasir, model, *options) as server:
            expected[name] = logprobs(server)[0]
    assert len({str(each) for each in expected.values()}) == 4, "adapters change the answer"

    wanted = {"none": [], "whole": [{"id": 0, "scale": 1}], "half": [{"id": 1, "scale": 0.5}],
              "both": [{"id": 0}, {"id": 1, "scale": -0.25}]}
    with LiveServer(kvasir, model, "--lora", adapter + ":0", "--lora", adapter + ":0") as server:
        # Requests side by side.
        with concurrent.futures.ThreadPoolExecutor(16) as pool:
            asked = [(name, pool.submit(logprobs, server, lora=wanted[name], kv={"bypass": True})) for name in list(wanted) * 6]
            for name, answer in asked:
                assert answer.result()[0] == expected[name], name
        assert logprobs(server)[0] == expected["none"], "scale 0 is the model alone"

        # Prefixes: of the same adapters and scales alone.
        for name, lora in wanted.items():
            first, again = logprobs(server, lora=lora), logprobs(server, lora=lora)
            assert again == (expected[name], 32), (name, again)
            assert first[0] == expected[name] and first[1] == (32 if name == "none" else 0), (name, first)
        assert logprobs(server, lora=[{"id": 0, "scale": 0.75}])[1] == 0

        # Other APIs have the field too.
        def text_of(path, body):
            status, _, text = server.ask("POST", path, body)
            assert status == 200, text
            return json.loads(re.sub(r'"(id|created|created_at|timings|usage|kv|[a-z_]*duration)":', r'"x_\1":', text))

        chat = {"messages": [{"role": "user", "content": "0123456789"}], "max_tokens": 16, "temperature": 0}
        for path, body, content in (
                ("/v1/chat/completions", chat, lambda a: a["choices"][0]["message"]["content"]),
                ("/completion", {"prompt": PROMPT["prompt"], "n_predict": 16, "temperature": 0}, lambda a: a["content"]),
                ("/v1/messages", chat, lambda a: a["content"]),
                ("/v1/responses", {"input": "0123456789", "max_output_tokens": 16, "temperature": 0}, lambda a: a["output"]),
                ("/api/generate", {"prompt": PROMPT["prompt"], "stream": False, "raw": True,
                                   "options": {"num_predict": 16, "temperature": 0}}, lambda a: a["response"])):
            plain, changed, off = (re.sub(r"[a-z]+[-_][0-9a-f]{8,}", "", str(content(text_of(path, {**body, **more}))))
                                   for more in ({}, {"lora": [{"id": 0}]}, {"lora": []}))
            assert plain == off and plain != changed, (path, plain, changed, off)

        # The list, and defaults.
        listed = adapters(server)
        assert [each["id"] for each in listed] == [0, 1] and [each["scale"] for each in listed] == [0, 0], listed
        assert listed[0]["path"] == os.path.basename(adapter) and listed[0]["bytes"] > 0 and listed[0]["rank"] > 0, listed
        status, _, text = server.ask("POST", "/lora-adapters", json.dumps([{"id": 1, "scale": 0.5}]))
        assert status == 200 and [each["scale"] for each in json.loads(text)] == [0, 0.5], text
        assert adapters(server) == json.loads(text) == adapters(server, "/lora-adapters?model=m")
        assert logprobs(server)[0] == expected["half"]
        assert logprobs(server, lora=[])[0] == expected["none"]
        assert server.metric("kvasir:adapter_bytes") == sum(each["bytes"] for each in listed)
        planned = json.loads(subprocess.run([kvasir, "plan", "-m", model, "--lora", adapter, "--lora", adapter, "--json"],
                                            check=True, capture_output=True, text=True).stdout)
        assert planned["adapter_bytes"] == sum(each["bytes"] for each in listed), planned

        # What is wrong is refused, in one line that names the field.
        for lora in ([{"id": 2}], [{"id": -1}], [{"id": 0}, {"id": 0}], [{"scale": 1}], [{"id": 0, "scale": "x"}], [{"id": 0.5}],
                     [{"name": "nobody"}], [{"name": listed[0]["name"]}], {"id": 0}, "x", [0], [{"id": 0}] * 65,
                     [{"id": 0, "name": "x"}], [{"id": 0, "scale": 1e39}]):
            status, answer = server.complete(**{**PROMPT, "lora": lora})
            assert status == 400 and answer["error"]["param"] == "lora", (lora, status, answer)
            assert "\n" not in answer["error"]["message"], answer
            status, _, text = server.ask("POST", "/lora-adapters", json.dumps(lora))
            assert status == 400, (lora, text)
        for body, code in (("", 400), ("[", 400), ("[" * 100_000, 413), ("null", 400), ('[{"id": 1e999}]', 400)):
            assert server.ask("POST", "/lora-adapters", body)[0] == code, body[:20]
        assert [each["scale"] for each in adapters(server)] == [0, 0.5]
        assert server.ask("GET", "/lora-adapters?model=nobody")[0] == 404
        assert server.end() == 0

    # Sessions keep the adapters that they began with, also over a restart; one whose adapter is gone is refused.
    with tempfile.TemporaryDirectory() as folder:
        def say(server, **body):
            return server.complete(**{**PROMPT, "session": "s", **body})

        with LiveServer(kvasir, model, "--lora", adapter + ":0", "--sessions", folder) as server:
            status, first = say(server, lora=[{"id": 0, "scale": 0.5}])
            assert status == 200 and first["choices"][0]["logprobs"]["token_logprobs"] == expected["half"], first
            status, wrong = say(server, lora=[{"id": 0}])
            assert status == 400 and wrong["error"]["param"] == "lora", wrong
            _, second = say(server)
            assert server.end() == 0
        with LiveServer(kvasir, model, "--sessions", folder) as server:
            status, gone = say(server)
            assert status == 400 and "is not loaded" in gone["error"]["message"], gone
            assert server.end() == 0
        with LiveServer(kvasir, model, "--lora", adapter, "--sessions", folder) as server:
            status, third = say(server)
            assert status == 200 and third["choices"][0]["logprobs"] != second["choices"][0]["logprobs"], third
            assert server.end() == 0

    # Several models: each has its own adapters.
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "config.toml")
        with open(config, "w", encoding="utf-8") as file:
            file.write(f'[[models]]\nname = "two"\npath = "{model}"\nlora = ["{adapter}:0.5"]\n')
        with LiveServer(kvasir, model, "--lora", adapter, "--config", config) as server:
            assert logprobs(server)[0] == expected["whole"]
            assert [each["scale"] for each in adapters(server, "/lora-adapters?model=two")] == [0.5]
            assert logprobs(server, model="two")[0] == expected["half"]
            assert [each["scale"] for each in adapters(server, "/lora-adapters?model=two")] == [0.5]
            assert server.end() == 0

    for options, says in ((("--lora", model), "this is no adapter"), (("--lora", "/no/such.gguf"), "/no/such.gguf"),
                          (("--lora", adapter + ":nan"), "outside -1000 to 1000"), (("--lora", adapter + ":inf"), "outside -1000 to 1000")):
        line = refused(kvasir, model, *options)
        assert says in line and "lora" in line or "/no/such" in line, line
    print("requests choose their adapters, and have the bits of a server with that choice alone")


if __name__ == "__main__":
    main(*sys.argv[1:])
