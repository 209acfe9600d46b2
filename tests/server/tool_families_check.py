"""Demanded calls of tools in every family's format, by a real model: tool_families_check.py KVASIR [MODEL]

Serves SmolLM2-135M-Instruct with each template of tests/dialogue/templates, and demands calls. Arguments of every call must be valid
by python3-jsonschema; the conversation with these calls and their results must be answered, and demand calls again. A template whose
calls are not known refuses. An answer that max_tokens cut does not count. Without the model
the check is skipped (77).
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "support")]

import jsonschema  # noqa: E402

from live_server import LiveServer  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402

SCHEMAS = {
    "write_note": {"type": "object", "properties": {
        "text": {"type": "string", "minLength": 1, "maxLength": 30},
        "kind": {"type": "string", "enum": ["a \"quoted\" kind", "two\nlines", "é 😀 \\", "true", "12"]},
        "count": {"type": "integer", "minimum": -5, "maximum": 12}, "done": {"type": "boolean"},
        "place": {"type": "object", "properties": {
            "name": {"type": "string", "maxLength": 20}, "tags": {"type": "array", "items": {"enum": ["a, b", "c]"]}, "maxItems": 2},
            "deep": {"type": "object", "properties": {"x": {"type": "number", "minimum": 0, "maximum": 1}}, "required": ["x"]}},
            "required": ["name", "deep"]}}, "required": ["text", "kind", "place"]},
    "find": {"type": "object", "properties": {
        "code": {"type": "string", "pattern": "^[a-c<\"]{1,4}$"}, "when": {"type": "string", "format": "date"},
        "from": {"$ref": "#/$defs/point"}}, "required": ["code", "when", "from"],
        "$defs": {"point": {"type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"]}}},
    "locate": {"$ref": "#/$defs/place", "$defs": {"place": {
        "type": "object", "additionalProperties": False, "required": ["name"], "properties": {
            "name": {"type": "string", "maxLength": 20}, "also": {"$ref": "#/$defs/place/properties/name"},
            "exact": {"type": "boolean"}}}}},
    "ping": None}
TOOLS = [{"type": "function", "function": {"name": name, "description": name, **({"parameters": schema} if schema else {})}}
         for name, schema in SCHEMAS.items()]
QUESTION = {"role": "user", "content": "Write a note about Rome, then find it."}
UNKNOWN = {"functionary"}


def chat(server, messages, seed, choice):
    status, _, text = server.ask("POST", "/v1/chat/completions", {
        "messages": messages, "tools": TOOLS, "tool_choice": choice, "max_tokens": 300, "temperature": 0.8, "seed": seed,
        "parallel_tool_calls": seed == 1, "reasoning_effort": "none"})
    return status, json.loads(text)


def check_calls(name, calls, choice):
    assert calls, name
    for call in calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        schema = SCHEMAS[function["name"]] or {"type": "object", "maxProperties": 0}
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(arguments)
        assert choice == "required" or function["name"] == choice["function"]["name"], (name, call)


def family(server, name):
    """Returns how many answers called, and how many were cut."""
    called = cut = 0
    find = {"type": "function", "function": {"name": "find"}}
    for seed, choice in ((1, "required"), (2, find)):
        messages = [QUESTION]
        for _ in range(2):
            status, answer = chat(server, messages, seed, choice)
            assert status == 200, (name, answer)
            given = answer["choices"][0]
            if given["finish_reason"] == "length":
                cut += 1
                break
            message = given["message"]
            assert given["finish_reason"] == "tool_calls" and not message["content"], (name, message)
            check_calls(name, message["tool_calls"], choice)
            called += 1
            messages = [*messages, message, *({"role": "tool", "tool_call_id": call["id"], "name": call["function"]["name"],
                                               "content": "done"} for call in message["tool_calls"]), QUESTION]
    return called, cut


def main():
    model = sys.argv[2] if len(sys.argv) > 2 else str(real_model_or_skip())
    for template in sorted((HERE.parent / "dialogue" / "templates").glob("*.jinja")):
        with LiveServer(sys.argv[1], model, "--chat-template", str(template)) as server:
            if template.stem in UNKNOWN:
                status, answer = chat(server, [QUESTION], 1, "required")
                assert status == 400 and answer["error"]["param"] == "tools", answer
                continue
            called, cut = family(server, template.stem)
            print(f"{template.stem}: {called} answers called, {cut} were cut", flush=True)
            assert called >= 2, template.stem


if __name__ == "__main__":
    main()
