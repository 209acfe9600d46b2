"""The OpenAI Agents SDK against `kvasir serve`, by chats and by responses: openai_agents_check.py KVASIR"""
import json

import framework
from framework import LIMIT, SUM, WORDS, animal_class, count_legs


async def each_agent(server, settings=None, **options):
    """Yields two agents: one asks for chats, one for responses."""
    import openai
    from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, OpenAIResponsesModel, set_tracing_disabled
    set_tracing_disabled(True)
    chosen = {"temperature": 0, "max_tokens": LIMIT, "parallel_tool_calls": False, **(settings or {})}
    async with openai.AsyncOpenAI(base_url=server.v1, api_key="none", max_retries=0) as client:
        for model in (OpenAIChatCompletionsModel, OpenAIResponsesModel):
            yield Agent(name="a", model=model("m", client), model_settings=ModelSettings(**chosen), **options)


async def check_text(server):
    from agents import Runner
    async for agent in each_agent(server):
        result = await Runner.run(agent, SUM)
        assert result.final_output == server.answer(SUM), result
        assert 3 < result.context_wrapper.usage.output_tokens < LIMIT, result.context_wrapper.usage


async def check_stream(server):
    from agents import Runner
    async for agent in each_agent(server):
        result = Runner.run_streamed(agent, SUM)
        pieces = [event.data.delta async for event in result.stream_events()
                  if event.type == "raw_response_event" and event.data.type == "response.output_text.delta"]
        assert result.final_output == server.answer(SUM) == "".join(pieces) and len(pieces) > 3, (result, pieces)


async def check_output_type(server):
    from agents import Runner
    Animal = animal_class()
    async for agent in each_agent(server, output_type=Animal, settings={"max_tokens": 60}):
        animal = (await Runner.run(agent, "Describe an animal.")).final_output
        assert isinstance(animal, Animal) and animal.name in WORDS, animal


async def check_tools(server):
    from agents import Runner, function_tool
    for choice in ("required", "count_legs"):
        async for agent in each_agent(server, settings={"max_tokens": 60, "tool_choice": choice},
                                      tools=[function_tool(count_legs)], tool_use_behavior="stop_on_first_tool"):
            result = await Runner.run(agent, "How many legs does the animal have?")
            assert [item.type for item in result.new_items] == ["tool_call_item", "tool_call_output_item"], result.new_items
            call = result.new_items[0].raw_item
            animal = json.loads(call.arguments)["animal"]
            assert call.name == "count_legs" and result.final_output == str(count_legs(animal)), (call, result)

            # The call and its result go back.
            agent.model_settings.tool_choice = "none"
            agent.model_settings.max_tokens = 60
            again = await Runner.run(agent, [*result.to_input_list(), {"role": "user", "content": SUM}])
            assert again.final_output and again.context_wrapper.usage.input_tokens > 60, again


if __name__ == "__main__":
    framework.main("openai_agents", globals())
