"""Thoughts over HTTP: thoughts_check.py KVASIR MODEL

The model gets a chat template whose answers begin with thoughts. Their tokens are counted as the ids of the answer say; a budget
ends them, the same alone, in a batch, as a stream, in samples, after preemptions and before a grammar; each API and each name of
the field reaches it; a template without thoughts refuses it by name. A conversation goes on from before dropped thoughts.
"""
import concurrent.futures
import json
import pathlib
import sys
import tempfile

from live_server import LiveServer

CHATS = "/v1/chat/completions"
BEGINS = """{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content is string and loop.last %}{{- '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{%- endif %}
{{- message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n<think>\\n' }}{%- endif %}"""
CHATML = """{%- for message in messages %}{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"""
QUESTIONS = [f"Tell me a story about {who} in {where}." for who in ("a cat", "Lily", "a dragon") for where in ("the forest", "a town")]


def ask(server, path=CHATS, **body):
    status, headers, text = server.ask("POST", path, body)
    return status, headers, json.loads(text)


def chat(server, question=QUESTIONS[0], **body):
    """The choices of an answer and its usage."""
    status, _, got = ask(server, messages=[{"role": "user", "content": question}],
                         **{"temperature": 0, "max_tokens": 48, "ignore_eos": not any(key.startswith("guided") for key in body), **body})
    assert status == 200, got
    return [choice["message"] for choice in got["choices"]], got["usage"]


def parts(message):
    return message.get("reasoning_content"), message["content"]


def tokens_of(server, text):
    return json.loads(server.ask("POST", "/tokenize", {"content": text})[2])["tokens"]


def check_count(server):
    # The model closes no thoughts by itself: all tokens count but for white space at the end, until a budget closes them.
    messages, usage = chat(server)
    count = usage["completion_tokens_details"]["reasoning_tokens"]
    assert not messages[0]["content"] and 40 < count <= 48, (messages, usage)
    for budget in (3, 7, 20):
        messages, usage = chat(server, thinking_token_budget=budget, logprobs=True)
        within = usage["completion_tokens_details"]["reasoning_tokens"]
        thought, said = parts(messages[0])
        assert thought and said and 1 <= within <= budget and usage["completion_tokens"] == 48, (messages, usage)
        status, _, got = ask(server, messages=[{"role": "user", "content": QUESTIONS[0]}], temperature=0, max_tokens=48,
                             ignore_eos=True, thinking_token_budget=budget, logprobs=True)
        pieces = [bytes(each["bytes"] or []) for each in got["choices"][0]["logprobs"]["content"]]
        assert status == 200 and b"".join(pieces[budget:]).startswith(b"\n</think>\n\n"), pieces
        assert b"</think>" not in b"".join(pieces[:budget])
        # The tokens before the closing are those of the answer without a budget.
        assert chat(server)[0][0]["reasoning_content"].startswith(thought), thought
    assert chat(server, thinking_token_budget=100)[1]["completion_tokens_details"]["reasoning_tokens"] == count
    off, usage = chat(server, thinking_token_budget=0)
    assert off[0].get("reasoning_content") is None and usage["completion_tokens_details"] == {"reasoning_tokens": 0}, (off, usage)


def check_same_answer(server):
    """Alone, in a batch with others, as samples and as a stream."""
    budgets = [3, 5, 8, 13, 21, None]
    bodies = [{"question": question, "kv": {"bypass": True}, **({"thinking_token_budget": budget} if budget else {})}
              for question, budget in zip(QUESTIONS, budgets)]
    alone = [parts(chat(server, **body)[0][0]) for body in bodies]
    with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
        for _ in range(3):
            got = list(pool.map(lambda body: parts(chat(server, **body)[0][0]), bodies))
            assert got == alone, (got, alone)
    for body, expected in zip(bodies, alone):
        samples, usage = chat(server, n=3, **body)
        assert [parts(each) for each in samples] == [expected] * 3, (samples, expected)
        streamed = [None, ""]
        _, _, text = server.ask("POST", CHATS, {
            "messages": [{"role": "user", "content": body["question"]}], "temperature": 0, "max_tokens": 48, "ignore_eos": True,
            "stream": True, "stream_options": {"include_usage": True}, **{key: value for key, value in body.items() if key != "question"}})
        for line in text.splitlines():
            chunk = json.loads(line[6:]) if line.startswith("data: {") else {"choices": []}
            for choice in chunk["choices"]:
                if "reasoning_content" in choice["delta"]:
                    streamed[0] = (streamed[0] or "") + choice["delta"]["reasoning_content"]
                streamed[1] += choice["delta"].get("content") or ""
            if chunk.get("usage"):
                assert chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] * 3 == \
                    usage["completion_tokens_details"]["reasoning_tokens"], (chunk, usage)
        assert tuple(streamed) == expected, (streamed, expected)
    return bodies, alone


def check_preempted(kvasir, model, template, bodies, alone):
    with LiveServer(kvasir, model, "--chat-template", template, "--kv-memory", "1200KiB", "--prefix-memory", "0") as server:
        with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
            for _ in range(4):
                got = list(pool.map(lambda body: parts(chat(server, **body)[0][0]), bodies))
                assert got == alone, (got, alone)
        assert server.metric("kvasir:num_preemptions_total") > 0, "nothing was preempted"


def check_grammar(server):
    for budget in (4, 9):
        messages, usage = chat(server, thinking_token_budget=budget, guided_choice=["spades", "hearts"])
        assert messages[0]["content"] in ("spades", "hearts") and messages[0]["reasoning_content"], messages
        assert usage["completion_tokens_details"]["reasoning_tokens"] <= budget, usage
    messages, _ = chat(server, reasoning={"max_tokens": 5}, max_tokens=200, guided_json={
        "type": "object", "properties": {"a": {"type": "integer", "maximum": 9, "minimum": 0}}, "required": ["a"], "additionalProperties": False})
    assert list(json.loads(messages[0]["content"])) == ["a"], messages


FIELDS = [{"thinking_token_budget": 6}, {"thinking_budget_tokens": 6}, {"reasoning_budget": 6}, {"reasoning_budget_tokens": 6},
          {"reasoning": {"max_tokens": 6}}, {"thinking": {"type": "enabled", "budget_tokens": 6}},
          {"chat_template_kwargs": {"thinking_budget": 6}}]


def check_names(server):
    expected = parts(chat(server, thinking_token_budget=6)[0][0])
    for field in FIELDS:
        assert parts(chat(server, **field)[0][0]) == expected, field
    question = [{"role": "user", "content": QUESTIONS[0]}]
    status, headers, got = ask(server, "/v1/messages", messages=question, max_tokens=48, temperature=0,
                               thinking={"type": "enabled", "budget_tokens": 6})
    assert status == 200 and "X-Kvasir-Ignored" not in headers, (got, headers)
    assert got["content"][0]["thinking"] == expected[0], (got, expected)
    status, _, got = ask(server, "/v1/responses", input=QUESTIONS[0], max_output_tokens=48, temperature=0,
                         reasoning={"max_tokens": 6})
    assert status == 200 and got["usage"]["output_tokens_details"]["reasoning_tokens"] in range(1, 7), got
    assert got["output"][0]["content"][0]["text"] == expected[0], (got, expected)


def check_prefix(kvasir, model, template):
    """A conversation whose thoughts are left out of the next prompt is continued from the place of the thoughts, with the same answers
    as without a cache."""
    policies = {"full": "pages", "streaming:sinks=4,window=100": "snapshot", "window:size=80": "snapshot"}
    for policy, source in policies.items():
        with LiveServer(kvasir, model, "--chat-template", template) as server:
            messages, before = [], 0
            for turn in range(3):
                messages.append({"role": "user", "content": f"Tell me story number {turn} about a cat, please. " * 8})
                body = {"messages": messages, "max_tokens": 100, "temperature": 0, "ignore_eos": True, "thinking_token_budget": 60}
                alone = ask(server, **body, kv={"policy": policy, "bypass": True})[2]["choices"][0]["message"]
                got = ask(server, **body, kv={"policy": policy})[2]
                message, kv, prompt = got["choices"][0]["message"], got["kv"], got["usage"]["prompt_tokens"]
                assert message == alone, (policy, turn, message, alone)
                if turn > 0:
                    assert kv["cache_miss"] == "thoughts_dropped" and kv["cached_from"] == source, (policy, turn, kv)
                    # Pages hold 32 tokens; a snapshot is at the place itself, some tokens of the opening before the prompt's end.
                    assert before - 32 - 12 < kv["cached"] < before and (source == "pages" or before - 12 < kv["cached"]), (policy, kv, before)
                else:
                    assert kv["cache_miss"] == "unknown" and kv["cached"] == 0, kv
                messages.append({"role": "assistant", "content": message["content"]})
                before = prompt
            # Another question is new, and nothing of another salt's conversation is told.
            other = [{"role": "user", "content": "What is a dragon? " * 20}]
            assert ask(server, messages=other, max_tokens=4, kv={"policy": policy})[2]["kv"]["cache_miss"] == "unknown"
            salted = ask(server, messages=messages[:3], max_tokens=4, kv={"policy": policy}, cache_salt="other")[2]["kv"]
            assert salted["cache_miss"] == "unknown" and salted["cached"] == 0, salted


def check_dropped(kvasir, model, template):
    """Thoughts leave the cache when they close: the same alone, in a batch, in samples and after preemptions. What follows them is not
    what follows where they stay, and no request takes the one for the other."""
    bodies = [{"messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": 64, "ignore_eos": True,
               "thinking_token_budget": 20 + turn, "kv": {"thoughts": "drop"}} for turn, question in enumerate(QUESTIONS)]

    def answer(server, body, **kv):
        status, _, got = ask(server, **{**body, "kv": {**body["kv"], **kv}})
        assert status == 200, got
        return parts(got["choices"][0]["message"]), got["kv"], got["usage"]

    with LiveServer(kvasir, model, "--chat-template", template) as server:
        alone = []
        for body in bodies:
            said, kv, usage = answer(server, body, bypass=True)
            thought = usage["completion_tokens_details"]["reasoning_tokens"]
            assert kv["policy"] == "full:thoughts=drop" and kv["seen"] - kv["kept"] == thought > 10, (kv, usage)
            kept, kv, _ = answer(server, body, bypass=True, thoughts="keep")
            assert kv["policy"] == "full" and kv["seen"] == kv["kept"] and kept[0] == said[0], (kv, kept, said)
            alone.append((said, kept))
        assert sum(said != kept for said, kept in alone) > 2, alone
        with concurrent.futures.ThreadPoolExecutor(12) as pool:
            for _ in range(2):
                got = list(pool.map(lambda body: answer(server, body)[0], bodies))
                assert got == [said for said, _ in alone], (got, alone)
                got = list(pool.map(lambda body: answer(server, body, thoughts="keep")[0], bodies))
                assert got == [kept for _, kept in alone], (got, alone)
        for body, (said, _) in zip(bodies, alone):
            samples = ask(server, n=3, **body)[2]["choices"]
            assert [parts(each["message"]) for each in samples] == [said] * 3, samples
        # The next prompt writes the thoughts out: it is a prompt, of which nothing was dropped.
        again = {**bodies[0], "messages": bodies[0]["messages"] + [
            {"role": "assistant", "reasoning_content": alone[0][0][0], "content": alone[0][0][1]}, {"role": "user", "content": "Go on."}]}
        assert answer(server, again)[0] == answer(server, again, bypass=True)[0]
        # Without thoughts there is nothing to drop.
        _, kv, _ = answer(server, {**bodies[0], "thinking_token_budget": 0})
        assert kv["seen"] == kv["kept"], kv
        for kv, name in (({"thoughts": "demote"}, "demote"), ({"thoughts": "x"}, "keep"), ({"thoughts": "drop", "policy": "h2o"}, "full"),
                         ({"thoughts": "drop", "policy": "streaming"}, "full")):
            status, _, got = ask(server, messages=bodies[0]["messages"], max_tokens=4, kv=kv)
            assert status == 400 and got["error"]["param"] == "kv.thoughts" and name in got["error"]["message"], got
        plan = ask(server, "/v1/kv/plan", prompt_tokens=50, kv={"thoughts": "drop"})
        assert plan[0] == 200 and plan[2]["policy"] == "full:thoughts=drop", plan
        streaming = ask(server, messages=bodies[0]["messages"], max_tokens=4, kv={"thoughts": "keep", "policy": "streaming"})
        assert streaming[0] == 200, streaming
    # As the server's own policy; sessions refuse it by name.
    with LiveServer(kvasir, model, "--chat-template", template, "--kv", "full:thoughts=drop",
                    "--sessions", str(pathlib.Path(template).parent / "sessions")) as server:
        assert answer(server, {**bodies[0], "kv": {}}, bypass=True)[0] == alone[0][0]
        for kv in ({}, {"policy": "full:thoughts=drop"}):
            status, _, got = ask(server, "/v1/sessions/one", prompt="Once", kv=kv)
            assert status == 400 and got["error"]["param"] == "kv.policy" and "thoughts=drop" in got["error"]["message"], got
        status, _, got = ask(server, "/v1/sessions/one", prompt="Once", kv={"policy": "full"})
        assert status in (200, 201), got
    for swap in ([], ["--swap-dir", str(pathlib.Path(template).parent)]):
        with LiveServer(kvasir, model, "--chat-template", template, "--kv-memory", "1000KiB", "--prefix-memory", "0", *swap) as server:
            with concurrent.futures.ThreadPoolExecutor(len(bodies)) as pool:
                for _ in range(4):
                    got = list(pool.map(lambda body: answer(server, body)[0], bodies))
                    assert got == [said for said, _ in alone], (got, alone)
            assert server.metric("kvasir:num_preemptions_total") > 0, "nothing was preempted"


def check_refused(kvasir, model, template):
    with LiveServer(kvasir, model, "--chat-template", template) as server:
        for field in FIELDS:
            status, _, got = ask(server, messages=[{"role": "user", "content": "Hi"}], max_tokens=4, **field)
            (name, value), = field.items()
            name += "." + [key for key in value if key != "type"][0] if isinstance(value, dict) else ""
            assert status == 400 and got["error"]["param"] == name and "no thoughts" in got["error"]["message"], got
        messages, usage = chat(server)
        assert "reasoning_content" not in messages[0] and usage["completion_tokens_details"] == {"reasoning_tokens": 0}, usage


def main(kvasir, model):
    with tempfile.TemporaryDirectory() as folder:
        begins, chatml = pathlib.Path(folder, "begins.jinja"), pathlib.Path(folder, "chatml.jinja")
        begins.write_text(BEGINS)
        chatml.write_text(CHATML)
        with LiveServer(kvasir, model, "--chat-template", str(begins)) as server:
            check_count(server)
            bodies, alone = check_same_answer(server)
            check_grammar(server)
            check_names(server)
        check_preempted(kvasir, model, str(begins), bodies, alone)
        check_prefix(kvasir, model, str(begins))
        check_dropped(kvasir, model, str(begins))
        check_refused(kvasir, model, str(chatml))
    print("thoughts are counted, and end at their budget")


if __name__ == "__main__":
    main(*sys.argv[1:])
