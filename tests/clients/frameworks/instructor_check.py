"""Instructor against `kvasir serve`: instructor_check.py KVASIR"""
import json

import framework
from framework import WORDS, animal_class

ASK = {"messages": [{"role": "user", "content": "Describe an animal."}], "temperature": 0, "max_retries": 0}


def client(server, mode):
    import instructor
    import openai
    return instructor.from_openai(openai.OpenAI(base_url=server.v1, api_key="none", max_retries=0), mode=mode, model="m")


def check_modes(server):
    from instructor import Mode
    Animal = animal_class()
    for mode in (Mode.TOOLS, Mode.TOOLS_STRICT, Mode.JSON_SCHEMA, Mode.RESPONSES_TOOLS):
        limit = {"max_output_tokens" if mode is Mode.RESPONSES_TOOLS else "max_tokens": 60}
        animal = client(server, mode).create(response_model=Animal, **limit, **ASK)
        assert isinstance(animal, Animal) and animal.name in WORDS, (mode, animal)


def check_json_mode(server):
    """The schema stands in the prompt alone, so that the model needs examples; the server enforces that the answer is JSON."""
    from instructor import Mode
    Animal = animal_class()
    messages = []
    for name, legs in zip(WORDS, (4, 6, 8)):
        messages += [{"role": "user", "content": f"Describe a {name} with {legs} legs."},
                     {"role": "assistant", "content": json.dumps({"name": name, "legs": legs})}]
    messages.append({"role": "user", "content": "Describe a quux with 4 legs."})
    animal = client(server, Mode.JSON).create(response_model=Animal, max_tokens=60, **{**ASK, "messages": messages})
    assert (animal.name, animal.legs) == ("quux", 4), animal


def check_stream(server):
    from instructor import Mode
    Animal = animal_class()
    for mode in (Mode.TOOLS, Mode.JSON_SCHEMA):
        parts = list(client(server, mode).create_partial(response_model=Animal, max_tokens=60, **ASK))
        assert len(parts) > 2 and parts[-1].name in WORDS and 2 <= parts[-1].legs <= 8, (mode, parts)


def check_list(server):
    from typing import Annotated
    import pydantic
    from instructor import Mode

    class Zoo(pydantic.BaseModel):
        animals: Annotated[list[animal_class()], pydantic.Field(min_length=2, max_length=2)]

    zoo = client(server, Mode.JSON_SCHEMA).create(response_model=Zoo, max_tokens=120, **ASK)
    assert len(zoo.animals) == 2, zoo


if __name__ == "__main__":
    framework.main("instructor", globals())
