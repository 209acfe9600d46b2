"""Holds conversations with tools against Jinja, set up as transformers does: tools_check.py CHAT_RENDER [FILE...]

Renders conversations with calls, results and thoughts by the templates of this folder's templates/, or by those given,
with python3-jinja2 and with chat_render, and compares the strings. A call's arguments are objects there, as
transformers wants them, or text where the template refuses objects. Exits with 77 (skipped) without Jinja.
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "chat"), str(HERE.parent / "jinja")]

from chat_check import ask, text_of, tokens_of  # noqa: E402
from reference_jinja import environment, jinja2  # noqa: E402

TOOLS = [{"type": "function", "function": {"name": name, "description": "It <does> \"é\".", "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "description": "Where."},
                                     "days": {"type": "integer", "description": "How many."}}, "required": ["city"]}}}
         for name in ("get_weather", "get_map")]
ARGUMENTS = ({}, {"city": "Zürich \"x\" <b>\n", "days": 3}, {"list": [1.5, True, None, "a"], "object": {"k": "v"}})


def call(number, arguments):
    return {"id": f"abcdef12{number}", "type": "function",
            "function": {"name": TOOLS[number % 2]["function"]["name"], "arguments": arguments}}


def conversations():
    user = {"role": "user", "content": "What is the weather?"}
    for calls in ([0], [1], [2], [1, 0], [1, 2, 0]):
        for content in ("", "Let me look."):
            for thoughts in ("", "I think <so>."):
                said = {"role": "assistant", "content": content,
                        "tool_calls": [call(i, ARGUMENTS[number]) for i, number in enumerate(calls)]}
                if thoughts:
                    said["reasoning_content"] = thoughts
                results = [{"role": "tool", "tool_call_id": f"abcdef12{i}", "content": f"result {i}",
                            "name": TOOLS[i % 2]["function"]["name"]} for i in range(len(calls))]
                yield [user, said]
                yield [user, said, *results]
                yield [user, said, *results, {"role": "assistant", "content": "Sunny."}, user]
    yield [user]
    yield [{"role": "system", "content": "Be brief."}, user]


def as_text(messages):
    """The same messages, arguments as JSON in a string."""
    return [{**message, "tool_calls": [{**each, "function": {**each["function"], "arguments": json.dumps(
        each["function"]["arguments"], ensure_ascii=False)}} for each in message["tool_calls"]]}
            if "tool_calls" in message else message for message in messages]


def thoughts_named(messages, name):
    return [{name if key == "reasoning_content" else key: value for key, value in message.items()} for message in messages]


def none_where_empty(messages):
    return [{**message, "content": None} if message["content"] == "" and "tool_calls" in message else message
            for message in messages]


def expected(template, messages, answer, bos, eos):
    """What transformers may give: by objects or text, and an empty content as none or "". The first that is right."""
    texts = []
    for form in (messages, as_text(messages)):
        for content in (none_where_empty(form), form):
            try:
                texts.append(template.render(messages=content, tools=TOOLS, add_generation_prompt=answer, bos_token=bos,
                                             eos_token=eos, documents=None))
            except (jinja2.exceptions.TemplateError, TypeError):
                texts.append(None)
    return texts


def main(program, paths):
    paths = [pathlib.Path(path) for path in paths] or sorted((HERE / "templates").glob("*.jinja"))
    failed = compared = 0
    for path in paths:
        source = path.read_bytes().decode()
        bos, eos = tokens_of(source)
        template = environment().from_string(source)
        name = next((name for name in ("reasoning_content", "reasoning", "thinking")
                     if name in source.replace("reasoning_content", "") or name == "reasoning_content" in source), "")
        talks = [(messages, answer) for messages in conversations() for answer in (False, True)]
        asked = [{"messages": as_text(messages), "open": answer, "tools": json.dumps(TOOLS, ensure_ascii=False)}
                 for messages, answer in talks]
        different = refused = 0
        for (messages, answer), got in zip(talks, ask(program, source, asked)["whole"]):
            wanted = expected(template, thoughts_named(messages, name) if name else messages, answer, bos, eos)
            refused += got is None
            compared += 1
            text = text_of(got, bos)
            if text in wanted if text is not None else wanted[0] is None:
                continue
            different += 1
            if different == 1:
                print(f"{path.name}: {json.dumps(messages)}\n  want {wanted[0]!r}\n  got  {text!r}")
        failed += different > 0 or refused == len(talks)
        print(f"{path.name}: {len(talks)} conversations, {refused} refused, {different} different")
    print(f"{compared} conversations compared")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
