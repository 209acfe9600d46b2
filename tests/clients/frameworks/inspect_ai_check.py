"""Inspect (`inspect-ai`) evaluates `kvasir serve`: inspect_ai_check.py KVASIR"""
import json
import os
import re
import tempfile

import framework
from framework import SUM, WORDS, animal_class


def evaluate(server, task, name="openai-api/kvasir/m", arguments=None, **options):
    """Returns the log of a task, which must have had no error."""
    from inspect_ai import eval as run
    (log,) = run(task, model=name, model_base_url=server.v1, model_args={"api_key": "none", **(arguments or {})}, display="none",
                 temperature=0, max_tokens=60, max_connections=4, log_dir=os.environ["INSPECT_LOG_DIR"], score_display=False,
                 **options)
    assert log.status == "success", log.error
    assert all(sample.error is None for sample in log.samples), log.samples
    return log


def score_of(log):
    return {name: metric.value for score in log.results.scores for name, metric in score.metrics.items()}


def check_scorer(server):
    """Two targets that are in the server's own answer, and two that are not."""
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate
    said = server.answer(SUM)
    absent = ("quux", "zorp")
    assert not any(word in said for word in absent), said
    samples = [Sample(input=SUM, target=target) for target in (said, said[:3], *absent)]
    arguments = {"chat": {}, "stream": {"stream": True}, "responses": {"responses_api": True}}
    for name, given in arguments.items():
        log = evaluate(server, Task(dataset=samples, solver=generate(), scorer=includes()), arguments=given)
        assert score_of(log)["accuracy"] == 0.5, (name, log.results)
        assert {sample.output.completion for sample in log.samples} == {said}, (name, log.samples)
        assert log.stats.model_usage["openai-api/kvasir/m"].output_tokens >= 16, log.stats


def check_schema(server):
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.model import ResponseSchema
    from inspect_ai.scorer import pattern
    from inspect_ai.solver import generate
    from inspect_ai.util import json_schema
    task = Task(dataset=[Sample(input="Describe an animal.", target=WORDS)], solver=generate(),
                scorer=pattern(r'"name":\s*"(\w+)"'))
    log = evaluate(server, task, response_schema=ResponseSchema(name="animal", json_schema=json_schema(animal_class()), strict=True))
    assert score_of(log)["accuracy"] == 1, log.samples
    animal = json.loads(log.samples[0].output.completion)
    assert animal["name"] in WORDS and isinstance(animal["legs"], int) and len(animal) == 2, animal  # no bounds: Inspect sends none


def check_tools(server):
    from inspect_ai import Task
    from inspect_ai.dataset import Sample
    from inspect_ai.scorer import includes
    from inspect_ai.solver import generate, use_tools
    from inspect_ai.tool import ToolFunction, tool

    @tool
    def count_legs():
        async def execute(animal: str) -> str:
            """Counts the legs of an animal.

            Args:
                animal: Its name.
            """
            return f"{len(animal)} legs"
        return execute

    solver = [use_tools(count_legs(), tool_choice=ToolFunction("count_legs")), generate(tool_calls="single")]
    log = evaluate(server, Task(dataset=[Sample(input="How many legs does the animal have?", target="legs")], solver=solver,
                                scorer=includes()))
    roles = [message.role for message in log.samples[0].messages]
    assert roles[:3] == ["user", "assistant", "tool"], roles
    assert re.fullmatch(r"\d+ legs", log.samples[0].messages[2].text), log.samples[0].messages


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        os.environ.update(INSPECT_LOG_DIR=folder, XDG_DATA_HOME=folder)
        framework.main("inspect_ai", globals())
