"""The APIs beside OpenAI's chats, against a real server: dialects_check.py KVASIR MODEL

Streams are compared event by event with what the APIs' documentation says, and each text with that of /v1/completions or
/v1/chat/completions for the same prompt.
"""

import json
import random
import subprocess
import sys
import tempfile
import time

from live_server import LiveServer, wait_for

HI = [{"role": "user", "content": "Who are you?"}]
PATHS = {  # path -> a small body that is answered with 200
    "/v1/messages": {"model": "m", "max_tokens": 4, "messages": HI, "temperature": 0},
    "/v1/responses": {"model": "m", "max_output_tokens": 4, "input": "Who are you?", "temperature": 0},
    "/api/chat": {"model": "m", "stream": False, "messages": HI, "options": {"num_predict": 4, "temperature": 0}},
    "/api/generate": {"model": "m", "stream": False, "prompt": "Who are you?", "options": {"num_predict": 4, "temperature": 0}},
    "/completion": {"prompt": "Once upon a time", "n_predict": 4, "temperature": 0},
}


def post(server, path, body, headers=None):
    status, fields, text = server.ask("POST", path, body, headers)
    return status, fields, json.loads(text)


def chat_text(server, messages, tokens):
    got = post(server, "/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "temperature": 0})[2]
    return got["choices"][0]["message"]["content"]


def named_events(text):
    """The events of a stream in which each has a name, which is its type too."""
    events = []
    for block in text.strip().split("\n\n"):
        name, data = block.split("\n")
        assert name.startswith("event: ") and data.startswith("data: "), block
        events.append(json.loads(data[6:]))
        assert events[-1]["type"] == name[7:], block
    return events


def message_of(error):
    """An error's message in any of the forms."""
    return error["error"] if isinstance(error["error"], str) else error["error"]["message"]


def check_anthropic_stream(server):
    want = chat_text(server, HI, 8)
    status, fields, text = server.ask("POST", "/v1/messages", {"model": "m", "max_tokens": 8, "messages": HI, "stream": True,
                                                               "temperature": 0})
    assert status == 200 and fields["Content-Type"] == "text/event-stream", fields
    events = named_events(text)
    kinds = [each["type"] for each in events]
    deltas = [each for each in events if each["type"] == "content_block_delta"]
    assert kinds == ["message_start", "ping", "content_block_start", *["content_block_delta"] * len(deltas),
                     "content_block_stop", "message_delta", "message_stop"], kinds
    start = events[0]["message"]
    assert start["id"].startswith("msg_") and start["content"] == [] and start["stop_reason"] is None, start
    assert events[2]["content_block"] == {"type": "text", "text": ""} and events[2]["index"] == 0
    assert "".join(each["delta"]["text"] for each in deltas) == want
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}, events[-2]
    assert events[-2]["usage"]["output_tokens"] == 8 and events[-2]["usage"]["input_tokens"] == start["usage"]["input_tokens"]
    whole = post(server, "/v1/messages", {"model": "m", "max_tokens": 8, "messages": HI, "temperature": 0})[2]
    assert whole["content"] == [{"type": "text", "text": want}] and whole["type"] == "message", whole


def check_anthropic_stops(server):
    """A stop sequence is named; the end of the text and an empty answer are not one."""
    text = chat_text(server, HI, 8)
    stop = text[3:6]
    got = post(server, "/v1/messages", {"max_tokens": 8, "messages": HI, "temperature": 0, "stop_sequences": ["nowhere~", stop]})[2]
    assert (got["stop_reason"], got["stop_sequence"]) == ("stop_sequence", stop), got
    assert got["content"][0]["text"] == text[:text.index(stop)]
    status, _, stream = server.ask("POST", "/v1/messages", {"max_tokens": 8, "messages": HI, "temperature": 0, "stream": True,
                                                            "stop_sequences": [text[:1]]})
    events = named_events(stream)
    assert [each["type"] for each in events] == ["message_start", "ping", "content_block_start", "content_block_stop",
                                                 "message_delta", "message_stop"], stream


def check_anthropic_content(server):
    """Blocks are the texts that they hold; a system prompt comes first; counts are those of the request."""
    parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "are you?"}]
    plain = [{"role": "system", "content": "Be brief."}, *HI]
    tokens = len(post(server, "/tokenize", {"messages": plain})[2]["tokens"])
    for system in ("Be brief.", [{"type": "text", "text": "Be "}, {"type": "text", "text": "brief."}]):
        body = {"messages": [{"role": "user", "content": parts}], "system": system}
        assert post(server, "/v1/messages/count_tokens", body)[2] == {"input_tokens": tokens}
        got = post(server, "/v1/messages", {**body, "max_tokens": 6, "temperature": 0})[2]
        assert got["content"][0]["text"] == chat_text(server, plain, 6) and got["usage"]["input_tokens"] == tokens, got
    # The answer goes on with the assistant's last message.
    begun = [*HI, {"role": "assistant", "content": "I am"}]
    got = post(server, "/v1/messages", {"messages": begun, "max_tokens": 6, "temperature": 0})[2]
    assert got["content"][0]["text"] == chat_text(server, begun, 6)


def check_anthropic_cache(server):
    """A mark pins the prefix; the next request reads it."""
    words = "The keeper of the lighthouse wrote this. " * 40
    body = {"max_tokens": 1, "temperature": 0, "messages": HI,
            "system": [{"type": "text", "text": words, "cache_control": {"type": "ephemeral", "ttl": "1h"}}]}
    first = post(server, "/v1/messages", body)[2]["usage"]
    second = post(server, "/v1/messages", body)[2]["usage"]
    assert first["cache_read_input_tokens"] == 0 and first["cache_creation_input_tokens"] > 200, first
    assert second["cache_read_input_tokens"] > 200, second
    total = sum(second[name] for name in ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))
    assert total == first["cache_creation_input_tokens"] + first["input_tokens"], (first, second)
    status, _, got = post(server, "/v1/messages", {**body, "cache_control": {"type": "ephemeral", "ttl": "2h"}})
    assert status == 400 and "cache_control.ttl" in got["error"]["message"], got


def check_anthropic_refusals(server):
    def refused(**change):
        status, _, got = post(server, "/v1/messages", {"max_tokens": 4, "messages": HI, **change})
        assert got["type"] == "error", got
        return status, got["error"]
    for change, word in (({"max_tokens": None}, "max_tokens"), ({"messages": []}, "messages"), ({"messages": "x"}, "messages"),
                         ({"messages": [{"role": "system", "content": "x"}]}, "role"),
                         ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "'image'"),
                         ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "'document'"),
                         ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "'text'"),
                         ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "citations": [1]}]}]}, "citations"),
                         ({"messages": [{"role": "user", "content": 7}]}, "content"),
                         ({"tools": [{"type": "web_search_20250305", "name": "w"}]}, "web_search"),
                         ({"tools": [{"name": 1}]}, "input_schema"), ({"tool_choice": {"type": "any"}}, "tool_choice"),
                         ({"thinking": {"type": "often"}}, "thinking"), ({"stop_sequences": [""]}, "stop_sequences"),
                         ({"system": [{"type": "image"}]}, "system"), ({"service_tier": "gold"}, "service_tier"),
                         ({"container": "x"}, "container"), ({"metadata": 1}, "metadata"), ({"temperature": "hot"}, "temperature"),
                         ({"output_config": {"format": {"type": "xml"}}}, "output_config"), ({"kv": {"nope": 1}}, "nope")):
        status, error = refused(**change)
        assert status == 400 and error["type"] == "invalid_request_error" and word in error["message"], (change, error)
    status, error = refused(model="other")
    assert status == 404 and error["type"] == "not_found_error", error
    for method, path, wanted in (("GET", "/v1/messages", 405), ("POST", "/v1/messages/batches", 404)):
        status, _, text = server.ask(method, path)
        assert status == wanted and json.loads(text)["type"] == "error", (path, text)
    status, _, got = post(server, "/v1/messages", PATHS["/v1/messages"], {"anthropic-version": "2023-01-01"})
    assert status == 400 and "anthropic-version" in got["error"]["message"], got
    for version in ("2023-06-01", "2026-10-21"):
        assert post(server, "/v1/messages", PATHS["/v1/messages"], {"anthropic-version": version})[0] == 200


def check_ollama_chat(server):
    want = chat_text(server, HI, 8)
    body = {"model": "m:latest", "messages": HI, "options": {"num_predict": 8, "temperature": 0}}
    status, fields, text = server.ask("POST", "/api/chat", body)
    assert status == 200 and fields["Content-Type"] == "application/x-ndjson", fields
    lines = [json.loads(line) for line in text.splitlines()]
    assert "".join(line["message"]["content"] for line in lines) == want
    assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
    last = lines[-1]
    assert last["done_reason"] == "length" and last["eval_count"] == 8 and last["prompt_eval_count"] > 0, last
    assert last["total_duration"] >= last["eval_duration"] > 0 and last["load_duration"] == 0
    whole = post(server, "/api/chat", {**body, "stream": False})[2]
    assert whole["message"] == {"role": "assistant", "content": want} and whole["done"] is True, whole


def check_ollama_generate(server):
    """A prompt is a user's message; a raw one is read as it is."""
    options = {"num_predict": 8, "temperature": 0}
    got = post(server, "/api/generate", {"prompt": "Who are you?", "system": "Be brief.", "stream": False, "options": options})[2]
    assert got["response"] == chat_text(server, [{"role": "system", "content": "Be brief."}, *HI], 8), got
    raw = post(server, "/api/generate", {"prompt": "Once upon a time", "raw": True, "stream": False, "options": options})[2]
    assert raw["response"] == server.complete(max_tokens=8)[1]["choices"][0]["text"], raw
    loaded = post(server, "/api/generate", {"model": "m"})[2]
    assert loaded["done_reason"] == "load" and loaded["response"] == "", loaded
    stopped = post(server, "/api/generate", {"prompt": "Once upon a time", "raw": True, "stream": False,
                                             "options": {**options, "stop": [raw["response"][4:7]]}})[2]
    assert stopped["done_reason"] == "stop" and stopped["response"] == raw["response"][:raw["response"].index(raw["response"][4:7])]


def check_ollama_refusals(server):
    for path, change, word in (("/api/generate", {"images": ["x"]}, "images"), ("/api/generate", {"template": "x"}, "template"),
                               ("/api/generate", {"context": [1]}, "context"), ("/api/generate", {"suffix": "x"}, "vocabulary"),
                               ("/api/generate", {"raw": True, "system": "x"}, "raw"), ("/api/generate", {"keep_alive": 0}, "keep_alive"),
                               ("/api/generate", {"options": {"mirostat": 1}}, "mirostat"), ("/api/generate", {"options": []}, "options"),
                               ("/api/generate", {"options": {"num_ctx": 10**9}}, "num_ctx"), ("/api/generate", {"format": 5}, "format"),
                               ("/api/generate", {"think": "much"}, "think"), ("/api/chat", {"messages": 5}, "messages"),
                               ("/api/chat", {"messages": [{"role": "robot", "content": "x"}]}, "role"),
                               ("/api/chat", {"messages": [{"role": "user", "content": "x", "images": ["x"]}]}, "images"),
                               ("/api/chat", {"messages": [{"role": "user", "content": 5}]}, "content"), ("/api/chat", {"tools": 5}, "tools")):
        status, _, got = post(server, path, {**PATHS[path], **change})
        assert status == 400 and set(got) == {"error"} and word in got["error"], (change, got)
    assert post(server, "/api/chat", {"model": "other", "messages": HI})[0] == 404
    for method, path, wanted in (("GET", "/api/chat", 405), ("POST", "/api/tags", 405), ("POST", "/api/pull", 404)):
        status, _, text = server.ask(method, path)
        assert status == wanted and isinstance(json.loads(text)["error"], str), (path, text)


def check_ollama_models(server):
    tags = json.loads(server.ask("GET", "/api/tags")[2])["models"][0]
    assert tags["name"] == tags["model"] == "m" and len(tags["digest"]) == 64 and tags["size"] > 0, tags
    running = json.loads(server.ask("GET", "/api/ps")[2])["models"][0]
    assert running["digest"] == tags["digest"] and running["context_length"] == 2048, running
    shown = post(server, "/api/show", {"model": "m:latest"})[2]
    assert "completion" in shown["capabilities"] and shown["model_info"]["llama.context_length"] == 2048, shown
    assert post(server, "/api/show", {"model": "other"})[0] == 404
    assert "version" in json.loads(server.ask("GET", "/api/version")[2])
    assert server.ask("HEAD", "/")[0] == 200
    with LiveServer(KVASIR, MODEL, "--no-inspector") as bare:
        assert bare.ask("GET", "/")[2] == "Kvasir is running\n" and bare.ask("HEAD", "/")[0] == 200


def check_llama_completion(server):
    want = server.complete(max_tokens=8)[1]["choices"][0]["text"]
    body = {"prompt": "Once upon a time", "n_predict": 8, "temperature": 0, "return_tokens": True, "n_probs": 2}
    whole = post(server, "/completion", body)[2]
    assert whole["content"] == want and whole["stop"] is True and whole["stop_type"] == "limit", whole
    assert post(server, "/detokenize", {"tokens": whole["tokens"]})[2]["content"].strip() == want.strip()
    assert whole["tokens_predicted"] == 8 == whole["timings"]["predicted_n"] and whole["prompt"] == "Once upon a time"
    assert [each["id"] for each in whole["completion_probabilities"]] == whole["tokens"]
    assert all(len(each["top_logprobs"]) == 2 for each in whole["completion_probabilities"])
    _, _, text = server.ask("POST", "/completion", {**body, "stream": True})
    chunks = [json.loads(line[6:]) for line in text.splitlines() if line]
    assert "".join(each["content"] for each in chunks) == want and [each["stop"] for each in chunks] == [False] * (len(chunks) - 1) + [True]
    assert sum((each["tokens"] for each in chunks), []) == whole["tokens"] and chunks[-2]["tokens_predicted"] <= 8
    stopped = post(server, "/completion", {**body, "stop": ["nowhere~", want[3:6]]})[2]
    assert (stopped["stop_type"], stopped["stopping_word"]) == ("word", want[3:6]), stopped


def check_llama_prompts(server):
    ids = post(server, "/tokenize", {"content": "Once upon a time", "add_special": True})[2]["tokens"]
    assert ids == post(server, "/tokenize", {"prompt": "Once upon a time"})[2]["tokens"]
    want = server.complete(max_tokens=4)[1]["choices"][0]["text"]
    options = {"n_predict": 4, "temperature": 0}
    for prompt in (ids, [ids[0], *ids[1:]], ["Once upon a time"], [ids]):
        assert post(server, "/completion", {**options, "prompt": prompt})[2]["content"] == want, prompt
    mixed = post(server, "/completion", {**options, "prompt": ["Once upon", *post(server, "/tokenize", {"content": "a"})[2]["tokens"]]})
    assert mixed[0] == 200, mixed
    two = post(server, "/completion", {**options, "prompt": ["Once upon a time", ids], "n_cmpl": 2})[2]
    assert [each["content"] for each in two] == [want] * 4 and [each["index"] for each in two] == [0, 1, 2, 3], two
    for change, word in (({"prompt": ""}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": {"x": 1}}, "prompt"), ({"prompt": [-1]}, "prompt"),
                         ({"prompt": [10**9]}, "vocabulary"), ({"prompt": ["x"] * 65}, "prompt"), ({"mirostat": 2}, "mirostat"),
                         ({"logit_bias": [[1]]}, "logit_bias"), ({"grammar": "root ::= x", "json_schema": {}}, "grammar"),
                         ({"lora": [{"id": 0}]}, "adapter"), ({"lora": 1}, "lora"), ({"t_max_predict_ms": 5}, "t_max_predict_ms"), ({"n_probs": 101}, "n_probs")):
        status, _, got = post(server, "/completion", {**options, "prompt": "x", **change})
        assert status == 400 and got["error"]["code"] == 400 and word in got["error"]["message"], (change, got)
    for samplers in ({"typical_p": 0.001}, {"top_n_sigma": 0.001}, {"top_k": 1, "xtc_threshold": 0.2, "dynatemp_range": 0.5}):
        free = {**options, "prompt": "Once upon a time", "n_predict": 8, "temperature": 1, "n_probs": 0}
        told = post(server, "/completion", {**free, **samplers})[2]
        assert all(told["generation_settings"][name] == value for name, value in samplers.items()), told["generation_settings"]
        again = post(server, "/completion", {**free, **samplers, "seed": 5})[2]
        assert again["content"] == told["content"], (samplers, "with one token left the seed counts for nothing")
    biased = post(server, "/completion", {**options, "prompt": "Once", "logit_bias": [[2, 100]]})[2]
    assert biased["stop_type"] == "eos" and biased["content"] == "", biased


def check_llama_rest(server):
    props = json.loads(server.ask("GET", "/props")[2])
    assert props["default_generation_settings"]["n_ctx"] == 2048 and props["total_slots"] == 16, props
    slots = json.loads(server.ask("GET", "/slots")[2])
    assert len(slots) == 16 and not any(slot["is_processing"] for slot in slots)
    stream = server.stream(max_tokens=10**6, kv={"policy": "streaming:window=60"})
    busy = [slot for slot in json.loads(server.ask("GET", "/slots")[2]) if slot["is_processing"]]
    assert len(busy) == 1 and busy[0]["n_prompt_tokens"] > 0, busy
    stream.close()
    rendered = post(server, "/apply-template", {"messages": HI})[2]["prompt"]
    assert post(server, "/tokenize", {"content": rendered, "add_special": True})[2]["tokens"] == post(
        server, "/tokenize", {"messages": HI})[2]["tokens"]
    pieces = post(server, "/tokenize", {"content": "Hi \U0001f600", "with_pieces": True})[2]["tokens"]
    assert [240] in [each["piece"] for each in pieces] and " Hi" in "".join(p["piece"] for p in pieces if isinstance(p["piece"], str)), pieces
    status, _, got = post(server, "/infill", {"input_prefix": "a", "input_suffix": "b"})
    assert status == 400 and "vocabulary" in got["error"]["message"], got


def check_responses_stream(server):
    want = chat_text(server, HI, 8)
    body = {"input": "Who are you?", "max_output_tokens": 8, "temperature": 0, "metadata": {"a": "b"}}
    status, _, text = server.ask("POST", "/v1/responses", {**body, "stream": True})
    events = named_events(text)
    kinds = [each["type"] for each in events]
    deltas = [each for each in events if each["type"] == "response.output_text.delta"]
    assert kinds == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
                     *["response.output_text.delta"] * len(deltas), "response.output_text.done", "response.content_part.done",
                     "response.output_item.done", "response.incomplete"], kinds
    assert [each["sequence_number"] for each in events] == list(range(len(events)))
    assert "".join(each["delta"] for each in deltas) == want == events[-4]["text"]
    last = events[-1]["response"]
    assert last["output"] == [events[-2]["item"]] and last["output"][0]["content"][0]["text"] == want
    assert last["incomplete_details"] == {"reason": "max_output_tokens"} and last["metadata"] == {"a": "b"} and last["store"] is True
    whole = post(server, "/v1/responses", body)[2]
    assert whole["output"][0]["content"] == last["output"][0]["content"] and whole["usage"] == last["usage"], whole


def check_responses_state(server):
    """What a response continues is the conversation itself."""
    first = post(server, "/v1/responses", {"input": "Who are you?", "max_output_tokens": 8, "temperature": 0, "instructions": "Be brief."})[2]
    said = first["output"][0]["content"][0]["text"]
    assert json.loads(server.ask("GET", f"/v1/responses/{first['id']}")[2]) == first
    conversation = [*HI, {"role": "assistant", "content": said}, {"role": "user", "content": "Why?"}]
    second = post(server, "/v1/responses", {"input": "Why?", "previous_response_id": first["id"], "max_output_tokens": 8, "temperature": 0})[2]
    assert second["output"][0]["content"][0]["text"] == chat_text(server, conversation, 8), "instructions do not stay"
    alone = post(server, "/v1/responses", {"input": conversation, "max_output_tokens": 8, "temperature": 0, "store": False})[2]
    assert alone["output"][0]["content"][0]["text"] == second["output"][0]["content"][0]["text"] and alone["store"] is False
    assert server.ask("GET", f"/v1/responses/{alone['id']}")[0] == 404
    assert json.loads(server.ask("DELETE", f"/v1/responses/{first['id']}")[2])["deleted"] is True
    assert server.ask("DELETE", f"/v1/responses/{first['id']}")[0] == 404
    status, _, got = post(server, "/v1/responses", {"input": "x", "previous_response_id": first["id"]})
    assert status == 400 and got["error"]["param"] == "previous_response_id", got
    assert post(server, "/v1/responses", {"input": "x", "previous_response_id": second["id"], "max_output_tokens": 1})[0] == 200


def check_responses_bound(_):
    """What is used least goes first; an answer that cannot be kept says so."""
    with LiveServer(KVASIR, MODEL, "--response-memory", "16KiB") as server:
        ids = []
        for _ in range(12):
            got = post(server, "/v1/responses", {"input": "x" * 900, "max_output_tokens": 1})[2]
            assert got["store"] is True, got
            ids.append(got["id"])
            assert server.ask("GET", f"/v1/responses/{ids[0]}")[0] == 200, "what is used stays"
        there = [server.ask("GET", f"/v1/responses/{each}")[0] == 200 for each in ids]
        assert there[0] and there[-1] and not there[1] and 2 < sum(there) < 12, there
    with LiveServer(KVASIR, MODEL, "--response-memory", "3KiB") as server:
        kept = post(server, "/v1/responses", {"input": "x", "max_output_tokens": 1})[2]
        large = post(server, "/v1/responses", {"input": "x" * 3000, "max_output_tokens": 1, "kv": {"policy": "streaming:cap=256"}})[2]
        assert kept["store"] is True and large["store"] is False, large
        assert server.ask("GET", f"/v1/responses/{kept['id']}")[0] == 200, "nothing goes for what cannot be kept"
    with LiveServer(KVASIR, MODEL, "--response-memory", "0") as server:
        assert post(server, "/v1/responses", {"input": "x", "max_output_tokens": 1})[2]["store"] is False


def check_responses_refusals(server):
    for change, word in (({"background": True}, "background"), ({"conversation": "c"}, "conversation"), ({"truncation": "auto"}, "truncation"),
                         ({"include": ["x"]}, "include"), ({"prompt": {"id": "x"}}, "prompt"), ({"tool_choice": "required"}, "tool_choice"),
                         ({"parallel_tool_calls": 5}, "parallel_tool_calls"), ({"top_logprobs": 3}, "top_logprobs"),
                         ({"tools": [{"type": "web_search"}]}, "web_search"), ({"metadata": {"a": 1}}, "metadata"),
                         ({"input": []}, "input"), ({"input": 5}, "input"), ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
                         ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input_image"),
                         ({"input": [{"role": "robot", "content": "x"}]}, "role"), ({"text": {"format": {"type": "xml"}}}, "text.format"),
                         ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "output"), ({"max_output_tokens": 0}, "max_output_tokens")):
        status, _, got = post(server, "/v1/responses", {"input": "x", **change})
        assert status == 400 and word in got["error"]["message"], (change, got)


def check_responses_fields_of_agents(server):
    """Encrypted thoughts are asked for by agents that keep them themselves; they get them as text, and are told."""
    asked = {"input": "x", "max_output_tokens": 1, "store": False}
    for include, named in (([], None), (["reasoning.encrypted_content"], "include")):
        status, headers, got = post(server, "/v1/responses", {**asked, "include": include})
        assert status == 200 and headers.get("X-Kvasir-Ignored") == named, (include, headers, got)
        assert got["parallel_tool_calls"] is True
    assert post(server, "/v1/responses", {**asked, "parallel_tool_calls": False})[2]["parallel_tool_calls"] is False
    status, _, got = post(server, "/v1/responses", {**asked, "include": ["reasoning.encrypted_content", "x"]})
    assert status == 400 and "include" in got["error"]["message"], got


def check_ignored_fields(server):
    """Fields that nobody reads are named, in bounds and without what a header cannot hold."""
    for path, body in PATHS.items():
        assert "X-Kvasir-Ignored" not in server.ask("POST", path, body)[1], path
        status, fields, _ = server.ask("POST", path, {**body, "frobnicate": 1, "zap\r\nX-Evil: 1": 2})
        assert status == 200 and fields["X-Kvasir-Ignored"] == "frobnicate, zap??X-Evil??1" and "X-Evil" not in fields, fields
        fields = server.ask("POST", path, {**body, **{f"field{i:04}" + "x" * 200: 0 for i in range(1000)}})[1]
        assert fields["X-Kvasir-Ignored"].endswith(", ...") and len(fields["X-Kvasir-Ignored"]) < 1200
    fields = server.ask("POST", "/api/chat", {**PATHS["/api/chat"], "options": {"num_gpu": 1, "num_predict": 1}})[1]
    assert fields["X-Kvasir-Ignored"] == "options.num_gpu", fields


def check_hostile_bodies(server):
    """No body of any shape is answered with anything but an answer or one clear refusal."""
    chance = random.Random(5)
    values = [None, True, -1, 0, 10**30, 1e308, "", "x", "\u0000", [], {}, [[]], [None], {"a": {}}, [{"type": "text"}], [{"role": "user"}],
              {"type": "x"}, ["x", 1], {"": ""}]
    names = {"/v1/messages": ["messages", "system", "tools", "tool_choice", "thinking", "stop_sequences", "metadata", "cache_control",
                              "max_tokens", "stream", "output_config", "kv"],
             "/v1/responses": ["input", "instructions", "tools", "text", "reasoning", "metadata", "previous_response_id", "include", "store", "kv"],
             "/api/chat": ["messages", "options", "tools", "format", "think", "keep_alive", "stream", "kv"],
             "/api/generate": ["prompt", "options", "format", "system", "suffix", "raw", "context", "images"],
             "/completion": ["prompt", "logit_bias", "stop", "n_probs", "seed", "grammar", "json_schema", "n", "samplers", "n_keep"]}
    for path, body in PATHS.items():
        for raw in ("", "[]", "nonsense", "{" * 100, '{"a":' * 70 + "1" + "}" * 70, "\xff"):
            status, _, text = server.ask("POST", path, raw.encode("latin-1"))
            assert status == 400 and message_of(json.loads(text)), (path, raw, text)
        for _ in range(60):
            change = {chance.choice(names[path]): chance.choice(values) for _ in range(chance.choice((1, 1, 2)))}
            status, _, text = server.ask("POST", path, json.dumps({**body, **change}).encode())
            assert status in (200, 400, 404), (path, change, status, text[:300])
            if status != 200:
                assert message_of(json.loads(text)) and "\n" not in message_of(json.loads(text)), (path, change, text)
    assert server.ask("GET", "/health")[0] == 200


def usage(server, key):
    """The sums of a tenant's usage."""
    rows = json.loads(server.ask("GET", "/v1/usage", headers={"x-api-key": key})[2])["data"]
    return {name: sum(row[name] for row in rows) for name in ("requests", "generated_tokens")}


def check_keys(_):
    """Each dialect takes a key either way, refuses in its own form, counts for its tenant, and keeps its limits."""
    with tempfile.TemporaryDirectory() as folder:
        keys = f"{folder}/keys.toml"

        def manage(*arguments):
            return subprocess.run([KVASIR, "keys", *arguments, "--api-keys", keys], capture_output=True, text=True,
                                  check=True).stdout.strip()
        for tenant in ("ann", "bob"):
            manage("tenant", tenant)
        ann, other, bob = (manage("add", "--tenant", tenant) for tenant in ("ann", "ann", "bob"))
        with LiveServer(KVASIR, MODEL, "--api-keys", keys, "--usage-db", f"{folder}/usage.db") as server:
            forms = {"/v1/messages": lambda e: e["type"] == "error" and e["error"]["type"] == "authentication_error",
                     "/v1/responses": lambda e: e["error"]["code"] == "invalid_api_key",
                     "/api/chat": lambda e: isinstance(e["error"], str), "/api/generate": lambda e: isinstance(e["error"], str),
                     "/completion": lambda e: e["error"]["code"] == 401}
            for path, body in PATHS.items():
                for headers in ({}, {"x-api-key": "wrong"}, {"Authorization": "Bearer wrong"}):
                    status, _, got = post(server, path, body, headers)
                    assert status == 401 and forms[path](got) and "wrong" not in json.dumps(got), (path, got)
                for headers in ({"x-api-key": ann}, {"Authorization": f"Bearer {ann}"}):
                    assert post(server, path, body, headers)[0] == 200, path
            for path in ("/api/tags", "/api/ps", "/api/version", "/props", "/slots"):
                assert server.ask("GET", path)[0] == 401 and server.ask("GET", path, headers={"x-api-key": ann})[0] == 200, path
            wait_for(lambda: usage(server, ann)["requests"] == 2 * len(PATHS), "the dialects' requests are not counted")
            assert usage(server, ann)["generated_tokens"] == 8 * len(PATHS), usage(server, ann)
            # A stored response is its key's alone, also within a tenant.
            kept = post(server, "/v1/responses", PATHS["/v1/responses"], {"x-api-key": ann})[2]["id"]
            for key, want in ((ann, 200), (other, 404), (bob, 404)):
                assert server.ask("GET", f"/v1/responses/{kept}", headers={"x-api-key": key})[0] == want
                status = post(server, "/v1/responses", {**PATHS["/v1/responses"], "previous_response_id": kept}, {"x-api-key": key})[0]
                assert status == (200 if want == 200 else 400), (want, status)
            assert server.ask("DELETE", f"/v1/responses/{kept}", headers={"x-api-key": bob})[0] == 404
            assert server.ask("DELETE", f"/v1/responses/{kept}", headers={"x-api-key": ann})[0] == 200


def main():
    global KVASIR, MODEL
    KVASIR, MODEL = sys.argv[1:3]
    with LiveServer(KVASIR, MODEL) as server:
        for name, check in list(globals().items()):
            if name.startswith("check_") and (len(sys.argv) < 4 or name in sys.argv[3:]):
                began = time.monotonic()
                check(server)
                print(f"{name}: ok ({time.monotonic() - began:.1f} s)", flush=True)


if __name__ == "__main__":
    main()
