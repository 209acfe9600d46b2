"""Every field of a request is done, refused by name, or named in the answer's header: fields_check.py KVASIR MODEL"""

import json
import subprocess
import sys

import request_fields
from live_server import LiveServer

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
STORY = "Once upon a time there was a"
GREEDY = {"temperature": 0}


def ask(server, path, body):
    status, fields, text = server.ask("POST", path, body)
    return status, fields.get("X-Kvasir-Ignored", ""), json.loads(text)


def done(server, path, **body):
    status, ignored, got = ask(server, path, body)
    assert status == 200 and ignored == "", (body, status, ignored, got)
    return got


def story(server, **body):
    """The first choice of a completion of 12 tokens, greedy unless the body says otherwise."""
    return done(server, COMPLETION, **{"prompt": STORY, "max_tokens": 12, "return_token_ids": True, **GREEDY, **body})["choices"][0]


def refused(server, path, field, **body):
    status, _, got = ask(server, path, body)
    assert status == 400 and got["error"]["param"] == field, (field, body, status, got)
    return got["error"]["message"]


def chunks_of(server, path, body):
    status, fields, text = server.ask("POST", path, {**body, "stream": True})
    assert status == 200, text
    said = [line[6:] for line in text.split("\n") if line.startswith("data: ")]
    assert said[-1] == "[DONE]"
    return fields, [json.loads(each) for each in said[:-1]]


def check_each(server):
    """Each field of the lists, alone."""
    messages = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "I"}]
    for path, base, lists in (
            (CHAT, {"messages": messages}, (request_fields.DONE_CHAT, request_fields.REFUSED_CHAT, request_fields.NAMED_CHAT)),
            (COMPLETION, {"prompt": STORY}, (request_fields.DONE_COMPLETION, request_fields.REFUSED_COMPLETION,
                                             request_fields.NAMED_COMPLETION))):
        base["max_tokens"] = 2
        for field, value in lists[0].items():
            more = {"add_generation_prompt": False} if field == "continue_final_message" else {}
            more |= {"logprobs": True} if field == "top_logprobs" else {}
            done(server, path, **{**base, **more, field: value})
        for field, value in lists[1].items():
            message = refused(server, path, field, **{**base, field: value})
            assert f"'{field}" in message and len(message.splitlines()) == 1, message
        for field, value in lists[2].items():
            status, ignored, got = ask(server, path, {**base, field: value})
            assert status == 200 and ignored == field, (field, status, ignored, got)
        for field in set().union(*lists):  # null is as if it were absent
            done(server, path, **{**base, field: None, "max_tokens": 2})
        known = set(base) | {"model", "stream"} | set().union(*lists)
        for field in request_fields.OPENAI_CHAT if path == CHAT else request_fields.OPENAI_COMPLETION:
            assert field in known, f"{field} of OpenAI's API is in no list"
    print(f"  {len(known)} fields of a completion")


def check_header(server):
    """The header is bounded and printable, on streams too; nested objects are in it."""
    odd = {"a,b": 1, "é\r\nX-Evil: 1": 2, "x" * 300: 3, **{f"f{i:02}": i for i in range(100)}}
    body = {"prompt": STORY, "max_tokens": 1}
    status, fields, text = server.ask("POST", COMPLETION, {**body, **odd})
    value = fields["X-Kvasir-Ignored"]
    names = value.split(", ")
    assert status == 200 and len(names) == 17 and names[-1] == "..." and len(value) < 1200 and "X-Evil" not in fields, fields
    assert names[0] == "a?b" and all(32 <= ord(c) < 127 for c in value), value
    fields, _ = chunks_of(server, COMPLETION, {**body, "zzz": 1})
    assert fields["X-Kvasir-Ignored"] == "zzz", fields
    nested = {"stream_options": {"include_usage": True, "include_obfuscation": False},
              "kv_hints": {"protocol_version": "0.1", "actions": [], "more": 1}}
    assert ask(server, COMPLETION, {**body, **nested})[1] == "stream_options.include_obfuscation, kv_hints.more"
    assert refused(server, COMPLETION, "stream_options.continuous_usage_stats", **body, stream_options={"continuous_usage_stats": 1})
    assert ask(server, COMPLETION, body)[1] == ""


def check_usage_in_chunks(server):
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in ((COMPLETION, {"prompt": STORY, "n": 2, "seed": 1}), (CHAT, {"messages": [{"role": "user", "content": STORY}]})):
        chunks = chunks_of(server, path, {**body, "max_tokens": 6, "ignore_eos": True, "stream_options": options})[1]
        totals = [chunk["usage"]["completion_tokens"] for chunk in chunks]
        assert totals == sorted(totals) and totals[-2:] == [6 * body.get("n", 1)] * 2 and len(set(totals)) > 3, totals
        assert {chunk["usage"]["prompt_tokens"] for chunk in chunks[2:]} == {chunks[-1]["usage"]["prompt_tokens"]}, chunks
        assert all(chunk["usage"]["total_tokens"] == sum(chunk["usage"][key] for key in ("prompt_tokens", "completion_tokens"))
                   for chunk in chunks), chunks
        plain = chunks_of(server, path, {**body, "max_tokens": 6, "stream_options": {"continuous_usage_stats": True}})[1]
        assert not any("usage" in chunk for chunk in plain), plain  # only with include_usage, as of vLLM


def check_hints(server):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1}
    for metadata in (5, {"a": 1}, {"a" * 65: "x"}, {"a": "x" * 513}, {str(i): "x" for i in range(17)}):
        refused(server, CHAT, "metadata", **body, metadata=metadata)
    for field in ("user", "safety_identifier", "prompt_cache_key"):
        refused(server, CHAT, field, **body, **{field: 5})
        refused(server, CHAT, field, **body, **{field: "x" * 513})
    assert done(server, CHAT, **body, service_tier="default")["service_tier"] == "default"
    assert "service_tier" not in done(server, CHAT, **body)
    _, chunks = chunks_of(server, CHAT, {**body, "service_tier": "auto"})
    assert all(chunk["service_tier"] == "default" for chunk in chunks)
    assert "--chat-template" in refused(server, CHAT, "chat_template", **body, chat_template="{{ messages }}")


def check_ends(server):
    """min_tokens, stop_token_ids, include_stop_str_in_output."""
    wants_end = {"logit_bias": {"2": 100}}
    assert story(server, **wants_end)["token_ids"] == [2]
    held = story(server, **wants_end, min_tokens=5)
    assert len(held["token_ids"]) == 6 and held["token_ids"][-1] == 2 and 2 not in held["token_ids"][:-1], held
    assert "max_tokens=12" in refused(server, COMPLETION, "min_tokens", prompt="x", max_tokens=12, min_tokens=13)
    plain = story(server)
    ids = plain["token_ids"]
    assert len(ids) == 12 and "stop_reason" not in plain
    stop = ids[4]
    cut = story(server, stop_token_ids=[stop, 999])
    assert cut["finish_reason"] == "stop" and cut["stop_reason"] == stop, cut
    assert cut["token_ids"] == ids[:ids.index(stop) + 1] and plain["text"].startswith(cut["text"]), (cut, plain)
    late = story(server, stop_token_ids=[stop], min_tokens=8)
    assert stop not in late["token_ids"][:8] and len(late["token_ids"]) >= 8, late
    _, chunks = chunks_of(server, COMPLETION, {"prompt": STORY, "max_tokens": 12, "stop_token_ids": [stop], "return_token_ids": True, **GREEDY})
    assert "".join(c["choices"][0]["text"] for c in chunks) == cut["text"]
    assert [i for c in chunks for i in c["choices"][0].get("token_ids", [])] == cut["token_ids"]
    assert chunks[0]["choices"][0]["prompt_token_ids"] == cut["prompt_token_ids"]
    assert chunks[-1]["choices"][0]["stop_reason"] == stop
    part = plain["text"][6:9]
    for include, want in ((False, plain["text"][:plain["text"].index(part)]),
                          (True, plain["text"][:plain["text"].index(part) + 3])):
        assert story(server, stop=part, include_stop_str_in_output=include)["text"] == want
    assert story(server, stop=part, min_tokens=12)["text"] == plain["text"]
    for field in ("stop_token_ids", "allowed_token_ids"):
        for bad in (5, ["x"], [-1], [10 ** 6], [1.5], [10 ** 30]):
            refused(server, COMPLETION, field, prompt="x", **{field: bad})
    refused(server, COMPLETION, "allowed_token_ids", prompt="x", allowed_token_ids=[])


def check_words(server):
    """allowed_token_ids, bad_words, logit_bias."""
    some = story(server)["token_ids"][:4]
    for seed in range(3):
        drawn = story(server, allowed_token_ids=some, temperature=10, seed=seed)["token_ids"]
        assert len(drawn) == 12 and set(drawn) <= set(some), drawn
    plain = story(server, max_tokens=30)["text"]
    word = max(plain.split()[1:-1], key=len).strip(".,!?\"'")
    tokens = server.ask("POST", "/tokenize", {"prompt": word, "add_special_tokens": False})[2]
    ids = json.loads(tokens)["tokens"]
    without = story(server, max_tokens=30, bad_words=[word])
    runs = [without["token_ids"][i:i + len(ids)] for i in range(30)]
    assert without["text"] != plain and ids not in runs, (word, without)
    assert story(server, max_tokens=30, bad_words=["zebra crossing"])["text"] == plain
    for bad in ("x", [5], [""], ["x" * 300], ["x"] * 129):
        refused(server, COMPLETION, "bad_words", prompt="x", bad_words=bad)
    assert '"a"' in refused(server, COMPLETION, "logit_bias", prompt="x", logit_bias={"a": 1})
    assert "token 7" in refused(server, COMPLETION, "logit_bias", prompt="x", logit_bias={"7": "x"})
    message = refused(server, COMPLETION, "allowed_token_ids", prompt="x", allowed_token_ids=[2], min_tokens=2)
    assert "no token may follow" in message, message


def check_sampling(server):
    """Steps whose effect can be told from one answer."""
    greedy = story(server)["token_ids"]
    free = {"temperature": 1, "ignore_eos": True}
    drawn = {tuple(story(server, **free, seed=seed)["token_ids"]) for seed in (1, 2, 3)}
    assert len(drawn) == 3, "without truncation seeds differ"
    assert story(server, **free, seed=1, top_n_sigma=0.001)["token_ids"] == greedy
    assert len({tuple(story(server, **free, seed=seed, typical_p=0.001)["token_ids"]) for seed in (1, 2, 3)}) == 1
    assert story(server, **free, seed=1, dynatemp_range=1, dynatemp_exponent=10)["token_ids"] == greedy
    # Of two tokens XTC leaves the second, which it must be in the log-probabilities too.
    second = story(server, **free, seed=1, top_k=2, xtc_probability=1, xtc_threshold=0, logprobs=2)["logprobs"]
    for token, top in zip(second["tokens"], second["top_logprobs"], strict=True):
        assert len(top) == 2 and top[token] == min(top.values()), (token, top)
    assert story(server, repeat_penalty=9)["token_ids"] == story(server, repetition_penalty=9)["token_ids"] != greedy
    assert story(server, repeat_penalty=9, repeat_last_n=0)["token_ids"] == greedy
    refused(server, COMPLETION, "repeat_penalty", prompt="x", repeat_penalty=9, repetition_penalty=9)
    long = {"max_tokens": 80, "ignore_eos": True}  # long enough to repeat itself
    looping = story(server, **long)["token_ids"]
    assert story(server, **long, dry_multiplier=5)["token_ids"] != looping
    assert story(server, **long, dry_multiplier=5, dry_penalty_last_n=1)["token_ids"] == looping
    said = done(server, COMPLETION, prompt="x", max_tokens=1, typical_p=0.5)["sampling"]
    assert said["typical_p"] == 0.5 and "xtc_probability" not in said, said


def check_prompts(server):
    """prompt_logprobs and return_token_ids in vLLM's form; truncate_prompt_tokens."""
    ids = json.loads(server.ask("POST", "/tokenize", {"prompt": STORY})[2])["tokens"]
    got = story(server, prompt_logprobs=3)
    assert got["prompt_token_ids"] == ids and len(got["prompt_logprobs"]) == len(ids) and got["prompt_logprobs"][0] is None
    echo = done(server, COMPLETION, prompt=ids, max_tokens=0, echo=True, logprobs=3)["choices"][0]["logprobs"]
    for token, each, value, top in zip(ids[1:], got["prompt_logprobs"][1:], echo["token_logprobs"][1:], echo["top_logprobs"][1:]):
        own = each[str(token)]
        assert abs(own["logprob"] - value) < 1e-6 and set(own) == {"logprob", "rank", "decoded_token"}, (own, value)
        ranked = sorted(each.values(), key=lambda entry: -entry["logprob"])
        assert [entry["rank"] for entry in ranked[:3]] == [1, 2, 3] and len(each) in (3, 4), each
        assert own["rank"] > 3 or len(each) == 3, each
        assert {entry["decoded_token"] for entry in each.values()} == set(top), (each, top)
    chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5, "return_token_ids": True, **GREEDY}
    whole = done(server, CHAT, **chat, prompt_logprobs=0)
    rendered = json.loads(server.ask("POST", CHAT + "/render", {"messages": chat["messages"]})[2])["token_ids"]
    assert whole["prompt_token_ids"] == rendered and len(whole["prompt_logprobs"]) == len(rendered)
    assert all(len(each) == 1 for each in whole["prompt_logprobs"][1:])
    _, chunks = chunks_of(server, CHAT, chat)
    assert chunks[0]["prompt_token_ids"] == rendered and not any("prompt_token_ids" in c for c in chunks[1:])
    assert [i for c in chunks for i in c["choices"][0].get("token_ids", [])] == whole["choices"][0]["token_ids"]
    refused(server, COMPLETION, "prompt_logprobs", prompt="x", prompt_logprobs=1, stream=True)
    refused(server, COMPLETION, "prompt_logprobs", prompt="x", prompt_logprobs=101)

    many = [300] * 2600  # times 64 prompts and 5 entries are more than 2^19
    window = {"max_tokens": 1, "kv": {"policy": "window:size=64"}}
    assert "too many" in refused(server, COMPLETION, "prompt_logprobs", prompt=[many] * 64, prompt_logprobs=4, **window)
    assert "too many" in refused(server, COMPLETION, "logprobs", prompt="x", logprobs=100, max_tokens=30000, kv=window["kv"])
    assert "too many" in refused(server, CHAT, "top_logprobs", messages=chat["messages"], logprobs=True, top_logprobs=50,
                                 max_tokens=10 ** 9, kv=window["kv"])
    done(server, COMPLETION, prompt="x", logprobs=100, max_tokens=2)

    for kept, more in ((ids[-3:], {}), (ids[:3], {"truncation_side": "right"})):
        cut = story(server, truncate_prompt_tokens=3, **more)
        assert cut["prompt_token_ids"] == kept and cut["token_ids"] == story(server, prompt=kept)["token_ids"], (cut, kept)
    assert "opening" in refused(server, CHAT, "truncation_side", messages=chat["messages"], truncate_prompt_tokens=3,
                                truncation_side="right")
    assert story(server, truncate_prompt_tokens=100)["prompt_token_ids"] == ids
    shown = story(server, truncate_prompt_tokens=3, echo=True)
    assert not shown["text"].startswith(STORY) and shown["text"].lstrip().startswith(STORY.split()[-3]), shown
    model = json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["max_model_len"]
    long = story(server, prompt=[300] * (model + 50), truncate_prompt_tokens=-1, kv={"policy": "full"})
    assert len(long["prompt_token_ids"]) == model - 12 and len(long["token_ids"]) <= 12
    for bad in (0, -2, "x"):
        refused(server, COMPLETION, "truncate_prompt_tokens", prompt="x", truncate_prompt_tokens=bad)
    refused(server, COMPLETION, "truncation_side", prompt="x", truncation_side="middle")


def check_chats(server):
    """echo and best_of on chats."""
    asked = [{"role": "user", "content": "Tell me a story."}]
    begun = asked + [{"role": "assistant", "content": "Once upon a time"}]
    plain = done(server, CHAT, messages=begun, max_tokens=8, **GREEDY)["choices"][0]["message"]["content"]
    shown = done(server, CHAT, messages=begun, max_tokens=8, echo=True, **GREEDY)["choices"][0]["message"]["content"]
    assert shown == "Once upon a time" + plain
    _, chunks = chunks_of(server, CHAT, {"messages": begun, "max_tokens": 8, "echo": True, **GREEDY})
    assert "".join(c["choices"][0]["delta"].get("content", "") for c in chunks) == shown
    assert "user" in refused(server, CHAT, "echo", messages=asked, echo=True)
    refused(server, CHAT, "echo", messages=begun, echo=True, add_generation_prompt=True)
    asked = {"messages": asked, "max_tokens": 6, "seed": 5, "ignore_eos": True, "temperature": 1}
    all_of = done(server, CHAT, **asked, n=4, logprobs=True)["choices"]
    best = done(server, CHAT, **asked, best_of=4)["choices"]

    def mean(choice):
        return sum(each["logprob"] for each in choice["logprobs"]["content"]) / 6

    assert len(best) == 1 and best[0]["message"]["content"] == max(all_of, key=mean)["message"]["content"]


def run(server, *arguments):
    return subprocess.run([KVASIR, "run", "-m", MODEL, "--json", "--raw", "-p", STORY, *arguments], capture_output=True, text=True)


def check_command(server):
    """The command line has the same options with the same effect and the same limits."""
    ids = story(server)["token_ids"]
    pairs = ((("--typical-p", "0.4", "--seed", "7"), {"typical_p": 0.4, "seed": 7, "temperature": 0.8}),
             (("--xtc-probability", "0.9", "--xtc-threshold", "0.05", "--seed", "7"),
              {"xtc_probability": 0.9, "xtc_threshold": 0.05, "seed": 7, "temperature": 0.8}),
             (("--top-n-sigma", "0.7", "--dynatemp-range", "0.5", "--dynatemp-exponent", "2", "--seed", "7"),
              {"top_n_sigma": 0.7, "dynatemp_range": 0.5, "dynatemp_exponent": 2, "seed": 7, "temperature": 0.8}),
             (("--temp", "0", "--stop-token-ids", f"{ids[5]},{ids[7]}", "--min-tokens", "3"),
              {"stop_token_ids": [ids[5], ids[7]], "min_tokens": 3}),
             (("--temp", "0", "--bad-words", "the", "--bad-words", "was"), {"bad_words": ["the", "was"]}),
             (("--temp", "0", "--allowed-token-ids", f"{ids[0]},{ids[1]}"), {"allowed_token_ids": ids[:2]}),
             (("--temp", "0", "--logit-bias", f"{ids[0]}=-100"), {"logit_bias": {str(ids[0]): -100}}),
             (("--temp", "0", "--stop", "e", "--include-stop"), {"stop": "e", "include_stop_str_in_output": True}))
    texts = set()
    for arguments, body in pairs:
        all_off = () if "--temp" in arguments else ("--top-k", "0", "--top-p", "1", "--min-p", "0", "--temp", "0.8")
        got = run(server, "-n", "12", *all_off, *arguments)
        want = story(server, **body)["text"]
        assert got.returncode == 0 and json.loads(got.stdout)["text"] == want, (arguments, got, want)
        texts.add(want)
    assert len(texts) >= len(pairs) - 1, texts
    limits = (("--logprobs", "logprobs", 100), ("--samples", "n", 64), ("--tokens", "max_tokens", 2 ** 40),
              ("--top-k", "top_k", 2 ** 31 - 1), ("--typical-p", "typical_p", 1), ("--xtc-threshold", "xtc_threshold", 1),
              ("--xtc-probability", "xtc_probability", 1), ("--top-n-sigma", "top_n_sigma", 100),
              ("--dynatemp-range", "dynatemp_range", 100), ("--dynatemp-exponent", "dynatemp_exponent", 10),
              ("--temp", "temperature", 100), ("--dry", "dry_multiplier", 100), ("--dry-length", "dry_allowed_length", 1024),
              ("--dry-window", "dry_penalty_last_n", 65536), ("--penalty-window", "repeat_last_n", 65536))
    for option, field, most in limits:
        beyond = most + 1
        got = run(server, option, str(beyond), *(() if option == "--tokens" else ("-n", "1")))
        assert got.returncode == 2 and option in got.stderr, (option, got)
        refused(server, COMPLETION, field, **{"prompt": "x", "max_tokens": 1, field: beyond})
        if field not in ("max_tokens", "n"):
            done(server, COMPLETION, **{"prompt": "x", "max_tokens": 1, field: most})
    for option, field, values in (("--stop", "stop", ["x"] * 17), ("--stop", "stop", ["x" * 1025]),
                                  ("--bad-words", "bad_words", ["x"] * 129), ("--bad-words", "bad_words", ["x" * 257])):
        got = run(server, "-n", "1", *[each for value in values for each in (option, value)])
        assert got.returncode == 2 and option in got.stderr, (option, got)
        refused(server, COMPLETION, field, prompt="x", **{field: values})


KVASIR, MODEL = sys.argv[1:3]
with LiveServer(KVASIR, MODEL) as server:
    for check in (check_each, check_header, check_hints, check_ends, check_words, check_sampling, check_prompts, check_chats,
                  check_command):
        check(server)
        print(f"{check.__name__}: ok")
