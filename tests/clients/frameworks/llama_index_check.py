"""LlamaIndex (`llama-index-llms-openai-like`) against `kvasir serve`: llama_index_check.py KVASIR"""
import framework
from framework import LIMIT, QUESTION, SUM, WORDS, animal_class, count_legs


def model(server, **options):
    from llama_index.llms.openai_like import OpenAILike
    return OpenAILike(**{"model": "m", "api_base": server.v1, "api_key": "none", "is_chat_model": True,
                         "is_function_calling_model": True, "temperature": 0, "max_tokens": LIMIT, "max_retries": 0,
                         "context_window": 2048, **options})


def message(text):
    from llama_index.core.llms import ChatMessage
    return ChatMessage(role="user", content=text)


def check_chat(server):
    answer = model(server).chat([message(QUESTION)])
    assert answer.message.content == server.answer(), answer
    assert answer.raw.choices[0].finish_reason == "length" and answer.raw.usage.completion_tokens == LIMIT, answer.raw


def check_stream(server):
    parts = list(model(server).stream_chat([message(QUESTION)]))
    assert "".join(part.delta for part in parts) == parts[-1].message.content == server.answer() and len(parts) > 3, parts


def check_completion(server):
    whole = model(server, is_chat_model=False).complete("2 + 2 =").text
    parts = [part.delta for part in model(server, is_chat_model=False).stream_complete("2 + 2 =")]
    assert whole and "".join(parts) == whole and len(parts) > 3, (whole, parts)


def check_tools(server):
    from llama_index.core.llms import ChatMessage
    from llama_index.core.tools import FunctionTool
    count = FunctionTool.from_defaults(count_legs)
    one = model(server, max_tokens=60)
    answer = one.chat_with_tools([count], "How many legs does the animal have?", tool_required=True)
    (call,) = one.get_tool_calls_from_response(answer)
    assert call.tool_name == "count_legs" and call.tool_kwargs["animal"] in WORDS, call
    result = count.call(**call.tool_kwargs)
    assert result.raw_output == count_legs(**call.tool_kwargs)

    told = ChatMessage(role="tool", content=result.content, additional_kwargs={"tool_call_id": call.tool_id})
    history = [message("How many legs does the animal have?"), answer.message, told]
    again = one.chat_with_tools([count], SUM, chat_history=history, tool_choice="none")
    assert again.message.content and not one.get_tool_calls_from_response(again, error_on_no_tool_call=False), again

    parts = list(one.stream_chat_with_tools([count], "How many legs does the animal have?", tool_required=True))
    (streamed,) = one.get_tool_calls_from_response(parts[-1])
    assert streamed.tool_kwargs == call.tool_kwargs and len(parts) > 3, parts


def check_structured_output(server):
    from llama_index.core.prompts import PromptTemplate
    Animal = animal_class()
    prompt = PromptTemplate("Describe {what}.")
    for by_schema in (True, False):  # else by a tool that must be called
        one = model(server, max_tokens=60, should_use_structured_outputs=by_schema)
        animal = one.structured_predict(Animal, prompt, what="an animal")
        assert isinstance(animal, Animal) and animal.name in WORDS, (by_schema, animal)
        assert one.as_structured_llm(Animal).complete("Describe an animal.").raw.name in WORDS
    one = model(server, max_tokens=60, should_use_structured_outputs=True)
    streamed = list(one.stream_structured_predict(Animal, prompt, what="an animal"))
    assert streamed[-1].name in WORDS and len(streamed) > 3, streamed


if __name__ == "__main__":
    framework.main("llama_index", globals())
