"""LangChain (`langchain-openai`) against `kvasir serve`: langchain_check.py KVASIR"""
import functools

import framework
from framework import LIMIT, QUESTION, WORDS, animal_class, count_legs


def model(server, **options):
    from langchain_openai import ChatOpenAI
    return ChatOpenAI(**{"model": "m", "base_url": server.v1, "api_key": "none", "temperature": 0, "max_retries": 0,
                         "max_tokens": LIMIT, **options})


def check_chat(server):
    message = model(server).invoke(QUESTION)
    assert message.content == server.answer(), message
    assert message.response_metadata["finish_reason"] == "length", message
    assert message.usage_metadata["output_tokens"] == LIMIT, message
    both = model(server).batch([QUESTION, QUESTION])
    assert [each.content for each in both] == [server.answer()] * 2, both


def check_stream(server):
    chunks = list(model(server, stream_usage=True).stream(QUESTION))
    assert len([chunk for chunk in chunks if chunk.content]) > 3, chunks
    whole = functools.reduce(lambda one, two: one + two, chunks)
    assert whole.content == server.answer() and whole.response_metadata["finish_reason"] == "length", whole
    assert whole.usage_metadata["output_tokens"] == LIMIT, whole


def check_tools(server):
    from langchain_core.messages import HumanMessage, ToolMessage
    from langchain_core.tools import tool

    count = tool(count_legs)
    def bound(choice):
        return model(server, max_tokens=60).bind_tools([count], tool_choice=choice, parallel_tool_calls=False)

    asked = [HumanMessage("How many legs does the animal have?")]
    for choice in ("required", "count_legs"):
        message = bound(choice).invoke(asked)
        assert message.response_metadata["finish_reason"] == "tool_calls", message
        (call,) = message.tool_calls
        assert call["name"] == "count_legs" and call["args"]["animal"] in WORDS and not message.invalid_tool_calls, message
    result = count.invoke(call)
    assert isinstance(result, ToolMessage) and result.tool_call_id == call["id"] and result.content == str(count_legs(call["args"]["animal"]))
    answer = model(server).bind_tools([count]).invoke([*asked, message, result])
    assert answer.content or answer.tool_calls, answer

    pieces = list(bound("required").stream(asked))
    streamed = functools.reduce(lambda one, two: one + two, pieces)
    assert streamed.tool_calls[0]["args"] == call["args"] and streamed.response_metadata["finish_reason"] == "tool_calls"
    assert len([piece for piece in pieces if piece.tool_call_chunks]) > 1, pieces


def check_structured_output(server):
    Animal = animal_class()
    for method in ("json_schema", "function_calling"):
        asked = model(server, max_tokens=60).with_structured_output(Animal, method=method)
        animal = asked.invoke("Describe an animal.")
        assert isinstance(animal, Animal), (method, animal)
        strict = model(server, max_tokens=60).with_structured_output(Animal, method=method, strict=True, include_raw=True)
        answer = strict.invoke("Describe an animal.")
        assert isinstance(answer["parsed"], Animal), (method, answer)
    parts = list(model(server, max_tokens=60).with_structured_output(Animal, method="json_schema").stream("Describe an animal."))
    assert isinstance(parts[-1], Animal), parts


def check_responses(server):
    one = model(server, use_responses_api=True)
    message = one.invoke(QUESTION)
    assert message.text == server.answer() and message.response_metadata["status"] == "incomplete", message
    chunks = list(one.stream(QUESTION))
    assert functools.reduce(lambda one, two: one + two, chunks).text == server.answer(), chunks


def check_embeddings(server):
    from langchain_openai import OpenAIEmbeddings
    # Without the check of lengths it would count tokens with OpenAI's vocabulary, and send those.
    embeddings = OpenAIEmbeddings(model="m", base_url=server.v1, api_key="none", check_embedding_ctx_length=False)
    many = embeddings.embed_documents([f"text {i}" for i in range(150)])
    assert len(many) == 150 and len(many[0]) == 576 and many[7] != many[8], len(many)
    assert embeddings.embed_query("text 7") == many[7]


def check_refusals(server):
    import openai
    for options, error in ({"model": "other"}, openai.NotFoundError), ({"extra_body": {"mirostat": 2}}, openai.BadRequestError):
        try:
            model(server, **options).invoke(QUESTION)
        except error:
            continue
        raise AssertionError(options)


if __name__ == "__main__":
    framework.main("langchain", globals(), options=("--pooling", "mean"))
