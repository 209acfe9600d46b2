"""Structured answers of a real server: grammar_check.py KVASIR [MODEL]

Each field that restricts an answer gives one that meets it, in chats and completions, streamed and not, for one answer and two;
what cannot be enforced is a 400 that names it. Needs the downloaded model.
"""
import json
import pathlib
import re
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

from live_server import LiveServer, wait_for  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402

SCHEMA = {"type": "object", "properties": {"zebra": {"type": "integer", "minimum": 1, "maximum": 99},
                                            "apple": {"enum": ["red", "green"]},
                                            "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}},
          "required": ["zebra", "apple", "list"], "additionalProperties": False}


def check_schema(text):
    value = json.loads(text)
    assert list(value) == ["zebra", "apple", "list"], value  # in the schema's order
    assert type(value["zebra"]) is int and 1 <= value["zebra"] <= 99 and value["apple"] in ("red", "green"), value
    assert len(value["list"]) <= 2 and all(type(each) is bool for each in value["list"]), value


def check_object(text):
    assert isinstance(json.loads(text), dict), text


def matches(regex):
    def check(text):
        assert re.fullmatch(regex, text), text
    return check


GRAMMAR = 'root ::= "{" [a-c]{2,4} "}" | "none"'
WAYS = [  # fields of a body, what its answer meets
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}}}, check_schema),
    ({"response_format": {"type": "json_object", "schema": SCHEMA}}, check_schema),
    ({"guided_json": SCHEMA}, check_schema),
    ({"json_schema": SCHEMA}, check_schema),
    ({"structured_outputs": {"json": SCHEMA}}, check_schema),
    ({"guided_regex": r"[A-Z][a-z]{2,5} \d{2}"}, matches(r"[A-Z][a-z]{2,5} \d{2}")),
    ({"structured_outputs": {"regex": r"(yes|no)!"}}, matches("(yes|no)!")),
    ({"guided_choice": ["spades", "hearts", "ace of spades"]}, matches("spades|hearts|ace of spades")),
    ({"structured_outputs": {"choice": ["a", "b"]}}, matches("[ab]")),
    ({"grammar": GRAMMAR}, matches(r"\{[a-c]{2,4}\}|none")),
    ({"guided_grammar": GRAMMAR}, matches(r"\{[a-c]{2,4}\}|none")),
]


def answers(server, chat, body, stream):
    """(text, finish reason) of each answer, in order of index."""
    prompt = {"messages": [{"role": "user", "content": "Give me an example, please."}]} if chat else {"prompt": "Here is one: "}
    path = "/v1/chat/completions" if chat else "/v1/completions"
    status, _, text = server.ask("POST", path, {**prompt, "max_tokens": 300, "seed": 5, "temperature": 0.8, "stream": stream, **body})
    assert status == 200, (status, text, body)
    if not stream:
        return [((each["message"]["content"] if chat else each["text"]), each["finish_reason"]) for each in json.loads(text)["choices"]]
    texts, reasons = {}, {}
    for line in text.splitlines():
        if not line.startswith("data: {"):
            continue
        for each in json.loads(line[6:])["choices"]:
            part = each["delta"].get("content") if chat else each["text"]
            texts[each["index"]] = texts.get(each["index"], "") + (part or "")
            reasons[each["index"]] = each["finish_reason"] or reasons.get(each["index"])
    return [(texts[index], reasons[index]) for index in sorted(texts)]


def check_answers(server):
    for body, check in WAYS:
        for chat in (False, True):
            for stream in (False, True):
                for count in (1, 2):
                    got = answers(server, chat, {**body, "n": count}, stream)
                    assert len(got) == count, got
                    for text, reason in got:
                        assert reason == "stop", (body, chat, stream, text, reason)
                        check(text)
    # An object of any kind may be long: then it is cut, and says so.
    for chat in (False, True):
        for text, reason in answers(server, chat, {"response_format": {"type": "json_object"}, "n": 2, "temperature": 0.3}, False):
            if reason == "stop":
                check_object(text)
            else:
                assert reason == "length" and text.startswith("{"), (text, reason)


def check_cut(server):
    """An answer that max_tokens ends is a beginning of what it would have been."""
    body = {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}, "temperature": 0}
    [(whole, reason)] = answers(server, True, body, False)
    assert reason == "stop", reason
    for tokens in (1, 3, 7):
        [(text, reason)] = answers(server, True, {**body, "max_tokens": tokens}, False)
        assert reason == "length" and whole.startswith(text) and len(text) < len(whole), (whole, text)


def check_stops_and_plain(server):
    """A grammar and a stop string; and a request without a grammar is not touched by one."""
    [(text, _)] = answers(server, False, {"guided_regex": "[a-z]{5}END[a-z]{5}", "stop": "END"}, False)
    assert re.fullmatch("[a-z]{5}", text), text
    plain = {"temperature": 0, "max_tokens": 8}
    before = answers(server, False, plain, False)
    answers(server, False, {"guided_choice": ["zzzz"]}, False)
    assert answers(server, False, plain, False) == before


def refused(server, body, *names):
    for path, prompt in (("/v1/completions", {"prompt": "a"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]})):
        status, _, text = server.ask("POST", path, {**prompt, "max_tokens": 4, **body})
        assert status == 400, (status, text, body)
        error = json.loads(text)["error"]
        message = error["message"]
        assert error["code"] is None, error  # not an overflow of the context
        assert "\n" not in message and all(name in message for name in names), (message, names)


def schema_format(schema):
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}}


def check_refusals(server):
    refused(server, schema_format({"type": "object", "not": {}}), "'not'")
    refused(server, schema_format({"type": "array", "uniqueItems": True}), "'uniqueItems'")
    refused(server, schema_format({"type": "string", "pattern": "(?=a)"}), "look-around")
    refused(server, schema_format({"type": "string", "minLength": 3, "maxLength": 2}), "no value meets the schema", "'minLength' is above 'maxLength'")
    refused(server, schema_format({"$ref": "#/$defs/none"}), "#/$defs/none")
    refused(server, schema_format({"type": "string", "format": "regex"}), "'regex'")
    refused(server, schema_format({"type": "object", "minProperties": 2, "additionalProperties": {}}), "'minProperties'")
    refused(server, schema_format({"type": "string", "maxLength": 100000}), "'maxLength'")
    refused(server, {"response_format": {"type": "json_schema"}}, "response_format", "needs 'json_schema'")
    refused(server, {"response_format": {"type": "xml"}}, "response_format")
    refused(server, {"response_format": "json"}, "response_format")
    refused(server, {"guided_regex": "(a"}, "byte 2")
    refused(server, {"guided_regex": 1}, "guided_regex")
    refused(server, {"grammar": "root ::= root \"a\" | \"b\""}, "left recursion")
    refused(server, {"grammar": "start ::= \"a\""}, "'root'")
    refused(server, {"guided_choice": []}, "choice")
    refused(server, {"guided_choice": "a"}, "guided_choice")
    refused(server, {"guided_regex": "a", "guided_choice": ["b"]}, "guided_regex", "guided_choice")
    refused(server, {"structured_outputs": {"structural_tag": "x"}}, "structural_tag")
    refused(server, {"structured_outputs": {"json": {}, "regex": "a"}}, "'structured_outputs.json' and 'structured_outputs.regex'")
    for empty in ({"grammar": ""}, {"guided_grammar": ""}, {"guided_regex": ""}, {"structured_outputs": {}},
                  {"structured_outputs": {"json": None}}, {"structured_outputs": {"regex": ""}}):
        refused(server, empty, f"'{list(empty)[0]}")
    refused(server, {"regex": "a"}, "'regex'", "structured_outputs")
    refused(server, schema_format({"type": "object", "properties": {f"p{i}": {} for i in range(30000)}}), "20000")
    deep = {"type": "null"}
    for _ in range(90):
        deep = {"type": "array", "items": deep}
    refused(server, schema_format(deep), "nest")


USER = [{"role": "user", "content": "Give me one."}]
DIALECTS = {"/v1/responses": {"input": "Give me one.", "max_output_tokens": 60},
            "/v1/messages": {"messages": USER, "max_tokens": 60},
            "/completion": {"prompt": "Here is one: ", "n_predict": 60}, "/infill": {"input_prefix": "a", "input_suffix": "b"},
            "/api/chat": {"messages": USER, "stream": False, "options": {"num_predict": 60}},
            "/api/generate": {"prompt": "Give me one.", "stream": False, "options": {"num_predict": 60}}}


def check_dialects(server):
    """A field that restricts an answer does so in every dialect, or is refused there by name; it is never without effect."""
    for path, body in DIALECTS.items():
        for field, value in (("guided_regex", "Q{3}"), ("guided_choice", ["QQQ"]), ("grammar", 'root ::= "QQQ"'),
                             ("guided_grammar", 'root ::= "QQQ"'), ("guided_json", {"const": "QQQ"}), ("json_schema", {"const": "QQQ"}),
                             ("structured_outputs", {"choice": ["QQQ"]}), ("response_format", schema_format({"const": "QQQ"})["response_format"])):
            status, _, text = server.ask("POST", path, {**body, field: value})
            if path == "/infill" and status == 400:
                continue  # a vocabulary without its tokens
            assert status == 200 and "QQQ" in text, (path, field, status, text)
        for field, value in (("regex", "a"), ("choice", ["a"]), ("output_format", {"type": "json"})):
            status, _, text = server.ask("POST", path, {**body, field: value})
            own = (path == "/v1/messages" and field == "output_format") or (path == "/infill" and "cannot fill in" in text)
            assert status == 400 and (own or f"'{field}' has no effect here" in text), (path, field, status, text)
    for path, more, status in (("/completion", {"grammar": ""}, 200), ("/api/generate", {"format": ""}, 200), ("/api/chat", {"format": ""}, 200),
                               ("/completion", {"tool_choice": "required"}, 400), ("/api/generate", {"tool_choice": "required"}, 400),
                               ("/api/chat", {"options": {"grammar": "root ::= x"}}, 400), ("/v1/messages", {"grammar": ""}, 400)):
        got, _, text = server.ask("POST", path, {**DIALECTS[path], **more})
        assert got == status and (got == 200 or f"'{list(list(more.values())[0])[0] if 'options' in more else list(more)[0]}'" in text), (path, more, got, text)


def tool(parameters, name="get_weather", **more):
    return {"type": "function", "function": {"name": name, "description": "d", "parameters": parameters, **more}}


def check_calls(server):
    """A demanded call, cut and with stops; and what cannot be asked for together with it."""
    city = tool({"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"]})
    body = {"messages": USER, "max_tokens": 300, "tools": [city], "tool_choice": "required"}
    for more in ({"guided_regex": "a"}, {"grammar": 'root ::= "a"'}):
        status, _, text = server.ask("POST", "/v1/chat/completions", {**body, **more})
        assert status == 400 and f"'{list(more)[0]}' would have no effect" in text, (status, text)
    status, _, text = server.ask("POST", "/v1/chat/completions", {**body, **schema_format({"type": "integer"})})  # of texts, not calls
    message = json.loads(text)["choices"][0]["message"]
    assert status == 200 and message["tool_calls"] and not message["content"], text
    for seed in range(2):
        for tokens in range(26, 34):
            status, _, text = server.ask("POST", "/v1/chat/completions", {**body, "seed": seed, "max_tokens": tokens})
            message = json.loads(text)["choices"][0]["message"]
            assert status == 200 and (not message.get("tool_calls") or not message["content"]), text
        status, _, text = server.ask("POST", "/v1/chat/completions", {**body, "seed": seed, "stop": ["city", "\""]})
        choice = json.loads(text)["choices"][0]
        assert choice["finish_reason"] == "tool_calls", text
        for call in choice["message"]["tool_calls"]:
            assert list(json.loads(call["function"]["arguments"])) == ["city"], text
    never = tool({"type": "object", "properties": {"a": {"type": "string", "minLength": 2, "maxLength": 1}}, "required": ["a"]}, "never")
    wrong = tool({"type": "object", "properties": {"a": {"not": {}}}}, "wrong")
    for one, words in ((never, "'minLength' is above 'maxLength'"), (wrong, "'not'")):
        status, _, text = server.ask("POST", "/v1/chat/completions", {**body, "tools": [city, one]})
        error = json.loads(text)["error"]
        assert status == 400 and error["param"] == "tools", text
        assert f'the tool "{one["function"]["name"]}"' in error["message"] and words in error["message"], text


def check_beside_slow(server):
    """Grammars that take long to compile hold up neither other requests nor each other, and stop when their client leaves."""
    slow = {"prompt": "a", "max_tokens": 1, "guided_json": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(4000)}}}
    wide = {"messages": USER, "max_tokens": 1, "tool_choice": "required",
            "tools": [tool({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(30000)}})]}
    began = time.monotonic()
    threads = [threading.Thread(target=server.ask, args=("POST", path, body))
               for path, body in (("/v1/completions", slow), ("/v1/completions", {**slow, "seed": 1}), ("/v1/chat/completions", wide))]
    for thread in threads:
        thread.start()
    time.sleep(0.1)
    took = []
    while any(thread.is_alive() for thread in threads) or not took:
        for path, body in (("/tokenize", {"prompt": "a b"}), ("/v1/chat/completions", {"messages": USER, "max_tokens": 1})):
            start = time.monotonic()
            status, _, text = server.ask("POST", path, body)
            assert status == 200, text
            took.append(time.monotonic() - start)
    for thread in threads:
        thread.join()
    whole = time.monotonic() - began
    print(f"beside grammars that took {whole:.2f} s, others waited {max(took):.3f} s at most")
    assert max(took) < max(1.0, whole / 2), took
    left = [server.connect() for _ in range(8)]  # four times what the two threads compile at once
    for connection in left:
        connection.request("POST", "/v1/completions", json.dumps(slow))
    for connection in left:
        connection.close()
    start = time.monotonic()
    status, _, text = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 4, "guided_regex": "[a-f]{3}x"})
    assert status == 200, text
    print(f"behind grammars whose clients have left, another took {time.monotonic() - start:.3f} s")
    assert time.monotonic() - start < max(1.0, whole), "the grammars of clients that have left are still compiled"
    start = time.monotonic()
    required = {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1001)}, "required": [f"p{i}" for i in range(1001)]}
    status, _, text = server.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 1, "guided_json": required})
    assert status == 200, text
    assert time.monotonic() - start < 10, "1,001 required properties took 49 s once"


def check_rounded_number(server):
    """A number that no double holds is refused as the client wrote it."""
    body = '{"prompt": "a", "max_tokens": 1, "guided_json": {"type": "number", "maximum": 0.29999999999999999999}}'
    status, _, text = server.ask("POST", "/v1/completions", body)
    error = json.loads(text)["error"]
    assert status == 400 and error["param"] == "guided_json" and "0.29999999999999999999" in error["message"], text


def check_unknown_calls(kvasir, model):
    """A template whose calls cannot be told from text refuses tools, and answers without them."""
    template = HERE.parent / "dialogue" / "templates" / "functionary.jinja"
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    with LiveServer(kvasir, model, "--chat-template", str(template)) as server:
        for more, wanted in (({}, 200), ({"tools": tools}, 400), ({"tools": tools, "tool_choice": "required"}, 400),
                             ({"tools": tools, "tool_choice": "none"}, 200)):
            status, _, text = server.ask("POST", "/v1/chat/completions", {**body, **more})
            assert status == wanted, (more, text)
            if wanted == 400:
                error = json.loads(text)["error"]
                assert error["param"] == "tools" and "form that Kvasir does not know" in error["message"], error


def main():
    model = sys.argv[2] if len(sys.argv) > 2 else str(real_model_or_skip())
    with LiveServer(sys.argv[1], model) as server:
        check_refusals(server)
        check_rounded_number(server)
        check_dialects(server)
        check_calls(server)
        check_beside_slow(server)
        check_answers(server)
        check_cut(server)
        check_stops_and_plain(server)
        wait_for(lambda: server.running() == 0, "a request still runs")
    check_unknown_calls(sys.argv[1], model)
    print(f"{len(WAYS) * 8} kinds of requests gave valid answers")


if __name__ == "__main__":
    main()
