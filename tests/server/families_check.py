"""Every kind of layer under every policy: families_check.py KVASIR FOLDER

FOLDER has small random models (tests/reference/originals): layers with windows, layers that read the keys of others, mixtures
of experts with attention sinks, states beside attention, latent attention. For each, requests under every policy and several
codecs are answered alone; then all together, so that one batch mixes them; on so little memory that requests are preempted and
swapped; continued from a prefix; and in a session that another server continues. Tokens and their log-probabilities, to the
last digit, are those of the request alone.
"""

import concurrent.futures
import json
import os
import sys
import tempfile
import time

from live_server import LiveServer
from same_answer_check import ROUNDS, crowd

MODELS = {
    "gemma2": "windows, soft caps",
    "gemma3": "windows",
    "gemma4": "windows, and layers that read the keys of others",
    "gpt_oss": "experts, sinks, windows",
    "qwen3moe": "experts",
    "qwen35moe": "states and experts",
    "lfm2": "states",
    "granitehybrid_experts": "states and experts",
    "phi3_long": "two sets of angles",
    "deepseek_v2": "latent",
}
POLICIES = ["full", "window:size=64", "streaming:sinks=4,window=60", "h2o:budget=64,recent=8", "tova:budget=64",
            "cascade:size=64,n=2,sinks=4", "lethe:start=48,max=96", "snapkv:budget=64,window=8+h2o:budget=64,recent=8",
            "pyramidkv:budget=64,window=8", "cake:budget=64,window=8", "random:budget=64", "quest:budget=64", "synckv:mem=60%,offload=off"]
CODECS = ["f16", "q8", "q4"]
OPTIONS = ("--kv-types", "q8,q4", "--chunk", "64")


def tokens(seed, count):
    """Ids of the models' bytes."""
    return [3 + (seed * 31 + 7 * i * i + 3 * i) % 93 for i in range(count)]


def bodies():
    for number, policy in enumerate(POLICIES):
        for codec in CODECS if policy in ("full", POLICIES[3]) else CODECS[number % 3:][:1]:
            yield {"prompt": tokens(number + 11, 120 + 13 * number), "max_tokens": 40, "temperature": 0, "ignore_eos": True,
                   "logprobs": 2, "kv": {"policy": policy, "codec": codec, "bypass": True}}


def answer(server, body):
    """The answer's log-probabilities of the tokens, as printed, and the KV report. None: the model refuses the policy."""
    status, _, text = server.ask("POST", "/v1/completions", body)
    got = json.loads(text)
    if status == 400:
        print(f"    {body['kv']['policy']}: {got['error']['message']}", flush=True)
        return None, None
    assert status == 200, text
    choice = got["choices"][0]
    return (choice["text"], json.dumps(choice["logprobs"])), got


def together(server, wanted):
    with concurrent.futures.ThreadPoolExecutor(len(wanted)) as pool:
        return list(pool.map(lambda body: answer(server, body), wanted))


def check_prefixes(server, wanted, alone):
    """The second of two equal requests begins with what the first one left. Returns tokens that were not read again."""
    reused = 0
    for body, said in zip(wanted, alone):
        kept = {**body, "kv": {**body["kv"], "bypass": False}}
        for _ in range(2):
            got, whole = answer(server, kept)
            assert got == said, ("prefix", body["kv"])
        reused += whole["usage"]["prompt_tokens_details"]["cached_tokens"]
    return reused


def check_small(kvasir, model, folder, wanted, most):
    """Returns preemptions on memory for about two of the requests: all begin at once, and some grow for long."""
    with LiveServer(kvasir, model, "--kv-memory", f"{2 * most // 1024 + 1}KiB", "--max-batch", "16", "--prefix-memory", "0",
                    "--swap-dir", folder, *OPTIONS) as server:
        growing = {"kv": {"policy": "full", "bypass": True}, "max_tokens": 160}
        bodies = [{**body, "max_tokens": 80} for body in wanted]
        bodies += [{**wanted[0], **growing, "prompt": tokens(number, 60)} for number in range(8)]
        alone = [answer(server, body)[0] for body in bodies]
        preempted = 0
        for _ in range(ROUNDS):
            got = crowd(server, bodies)
            assert [texts for texts, _ in got] == [[said[0]] for said in alone], "on little memory"
            preempted += sum(preemptions for _, preemptions in got)
            if preempted:
                break
        assert server.end() == 0
        return preempted


def check_session(kvasir, model, folder, policy):
    """A session that one server begins and another continues says what it says when one server does both; where the policy
    looks at positions alone, that is what one request says of the whole text."""
    first, more = tokens(5, 150), tokens(6, 40)
    fields = {"max_tokens": 30, "temperature": 0, "ignore_eos": True, "kv": {"policy": policy}}

    def begin(server, name):
        status, _, text = server.ask("POST", f"/v1/sessions/{name}", {"prompt": first, "kv": {"policy": policy}})
        assert status == 200, text

    def go_on(server, name):
        status, _, text = server.ask("POST", "/v1/completions", {**fields, "session": name, "prompt": more})
        assert status == 200, text
        assert server.ask("DELETE", f"/v1/sessions/{name}")[0] == 200
        return json.loads(text)["choices"][0]["text"]

    with LiveServer(kvasir, model, "--sessions", folder, *OPTIONS) as server:
        whole = server.ask("POST", "/v1/completions", {**fields, "prompt": first + more})[2]
        begin(server, "a")
        begin(server, "b")
        wanted = go_on(server, "a")
        assert server.end() == 0
    if not policy.startswith("h2o"):
        assert wanted == json.loads(whole)["choices"][0]["text"], ("session", policy)
    with LiveServer(kvasir, model, "--sessions", folder, *OPTIONS) as server:
        assert go_on(server, "b") == wanted, ("session of another server", policy)
        assert server.end() == 0


def main(kvasir, folder):
    for name, what in MODELS.items():
        began = time.time()
        model = os.path.join(folder, f"{name}.gguf")
        print(f"{name} ({what}):", flush=True)
        with LiveServer(kvasir, model, "--max-batch", "32", *OPTIONS) as server:
            wanted, alone, most = [], [], 0
            for body in bodies():
                said, whole = answer(server, body)
                if said is None:
                    continue
                wanted.append(body)
                alone.append(said)
                most = max(most, whole["kv"]["bytes_peak"])
            assert len(set(alone)) > len(alone) // 2, "the answers differ, so that mixing them up shows"
            for _ in range(2):
                assert [said for said, _ in together(server, wanted)] == alone, "together"
            reused = check_prefixes(server, wanted, alone)
            assert reused > 0
            assert 0 < server.metric("kvasir:kv_peak_bytes") <= server.metric("kvasir:kv_budget_bytes")
            assert server.end() == 0
        with tempfile.TemporaryDirectory() as place:
            preempted = check_small(kvasir, model, place, wanted, most)
            assert preempted > 0, "nothing was preempted: this shows nothing"
            for policy in ("full", "streaming:sinks=4,window=60", "h2o:budget=64,recent=8"):
                check_session(kvasir, model, place, policy)
        print(f"  {len(wanted)} requests, {reused} tokens reused, {preempted} preemptions: {time.time() - began:.1f} s",
              flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:3])
