"""Pydantic AI against `kvasir serve`, by chats and by responses: pydantic_ai_check.py KVASIR"""
import asyncio

import framework
from framework import LIMIT, QUESTION, WORDS, animal_class, count_legs


def agents(server, **options):
    """Returns two agents: one asks for chats, one for responses."""
    from pydantic_ai import Agent
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider
    provider = OpenAIProvider(base_url=server.v1, api_key="none")
    settings = {"temperature": 0, "max_tokens": LIMIT, "parallel_tool_calls": False, **options.pop("settings", {})}
    return [Agent(model("m", provider=provider), model_settings=settings, **options)
            for model in (OpenAIChatModel, OpenAIResponsesModel)]


def check_text(server):
    for agent in agents(server):
        result = agent.run_sync(QUESTION)
        assert result.output == server.answer() and result.usage.output_tokens == LIMIT, result
        assert result.response.finish_reason == "length", result.response


def check_stream(server):
    async def stream(agent):
        async with agent.run_stream(QUESTION) as result:
            return [part async for part in result.stream_text(delta=True, debounce_by=None)], result.usage

    for agent in agents(server):
        parts, usage = asyncio.run(stream(agent))
        assert "".join(parts) == server.answer() and len(parts) > 3 and usage.output_tokens == LIMIT, (parts, usage)


def check_output_types(server):
    from pydantic_ai import NativeOutput, ToolOutput
    Animal = animal_class()
    for output in (ToolOutput(Animal), NativeOutput(Animal), NativeOutput(Animal, strict=True)):
        for agent in agents(server, output_type=output, settings={"max_tokens": 60}, retries=0):
            result = agent.run_sync("Describe an animal.")
            assert isinstance(result.output, Animal) and result.usage.requests == 1, result


def check_tools(server):
    from pydantic_ai.capabilities import PrepareOutputTools
    from pydantic_ai.messages import ToolCallPart, ToolReturnPart
    from pydantic_ai.tools import Tool
    Animal = animal_class()

    async def until_called(context, definition):
        return None if context.run_step > 1 else definition

    # The class of the output is offered only once the tool has been called.
    async def after_call(context, definitions):
        return definitions if context.run_step > 1 else []

    for agent in agents(server, output_type=Animal, tools=[Tool(count_legs, prepare=until_called)],
                        capabilities=[PrepareOutputTools(after_call)], settings={"max_tokens": 60}, retries=0):
        result = agent.run_sync("How many legs does the animal have?")
        parts = [part for message in result.all_messages() for part in message.parts]
        call = next(part for part in parts if isinstance(part, ToolCallPart))
        told = next(part for part in parts if isinstance(part, ToolReturnPart))
        assert call.tool_name == "count_legs" and told.content == count_legs(call.args_as_dict()["animal"]), parts
        assert isinstance(result.output, Animal) and result.output.name in WORDS and result.usage.requests == 2, result


if __name__ == "__main__":
    framework.main("pydantic_ai", globals())
