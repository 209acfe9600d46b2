"""The `openai` package (Python) calls tools of `kvasir serve`: tools_check.py KVASIR

SmolLM2-135M-Instruct calls a tool where earlier turns of the conversation did. The package is installed beside the
build once; where pip cannot do that, or without the model, the check is skipped (77).
"""
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "server"), str(HERE.parent / "support")]

from live_server import LiveServer  # noqa: E402
from pip_packages import import_or_skip  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Get the weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]


def call_of(city, number):
    return {"role": "assistant", "content": None, "tool_calls": [
        {"id": f"call_{number}", "type": "function",
         "function": {"name": "get_weather", "arguments": json.dumps({"city": city})}}]}


def conversation():
    messages = []
    for number, city in enumerate(("Rome", "Oslo", "Lima")):
        messages += [{"role": "user", "content": f"What is the weather in {city}?"}, call_of(city, number)]
    return [*messages, {"role": "user", "content": "What is the weather in Paris?"}]


def check(openai, port):
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
    asked = {"model": "m", "messages": conversation(), "tools": TOOLS, "temperature": 0, "max_tokens": 60}

    whole = client.chat.completions.create(**asked).choices[0]
    assert whole.finish_reason == "tool_calls" and whole.message.content is None, whole
    (call,) = whole.message.tool_calls
    assert call.function.name == "get_weather" and json.loads(call.function.arguments) == {"city": "Paris"}, call
    assert call.id.startswith("call_") and call.type == "function"

    # The package puts the pieces of a stream together, and checks their order.
    with client.chat.completions.stream(**asked) as stream:
        events = [event.type for event in stream]
        streamed = stream.get_final_completion().choices[0]
    assert streamed.finish_reason == "tool_calls", streamed
    (again,) = streamed.message.tool_calls
    assert again.function.arguments == call.function.arguments and again.id != call.id
    assert events.count("tool_calls.function.arguments.delta") > 3, events
    assert "tool_calls.function.arguments.done" in events

    # The call and its result go back.
    told = [*asked["messages"], whole.message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "sunny, 21 degrees"}]
    answer = client.chat.completions.create(**{**asked, "messages": told}).choices[0]
    assert answer.message.content or answer.message.tool_calls, answer

    # Without tools the model hears of none, and a call is text.
    none = client.chat.completions.create(**{**asked, "tool_choice": "none"}).choices[0]
    assert none.message.tool_calls is None and none.finish_reason == "stop", none
    one = client.chat.completions.create(**{**asked, "parallel_tool_calls": False}).choices[0]
    assert len(one.message.tool_calls) == 1

    for fields, param in (({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools"),
                          ({"tool_choice": "sometimes"}, "tool_choice")):
        try:
            client.chat.completions.create(**{**asked, **fields})
            raise AssertionError(fields)
        except openai.BadRequestError as error:
            assert error.param == param, error


def main(kvasir):
    model = real_model_or_skip()
    import_or_skip(pathlib.Path(kvasir).resolve().parent.parent, "dialect_clients", HERE / "dialects" / "requirements.txt", minutes=10)
    import openai

    with LiveServer(kvasir, str(model)) as server:
        check(openai, server.port)
    print("calls whole and streamed, results, refusals: as the package expects")


if __name__ == "__main__":
    main(sys.argv[1])
