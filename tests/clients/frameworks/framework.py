"""What the checks of frameworks share: a framework's packages, the model, the server, and an answer to compare with."""
import asyncio
import functools
import json
import pathlib
import sys
import time
from typing import Literal

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent.parent / "server"), str(HERE.parent.parent / "support")]

from live_server import LiveServer  # noqa: E402
from pip_packages import import_or_skip  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402

QUESTION = "Who are you?"  # its answer is longer than LIMIT
SUM = "What is 2+2? Answer with a number."  # its answer is shorter
LIMIT = 16  # tokens of an answer in words
# Words that the model does not say by itself: an answer that has one is due to a schema.
WORDS = ("zorp", "quux", "blarg")


def animal_class():
    """Returns a class whose objects a framework is to make of an answer."""
    from pydantic import BaseModel, Field

    class Animal(BaseModel):
        """An animal of a story."""
        name: Literal[WORDS]
        legs: int = Field(ge=2, le=8)

    return Animal


def count_legs(animal: Literal[WORDS]) -> int:
    """Counts the legs of an animal."""
    return 3 + WORDS.index(animal)


class Server:
    """A server that runs SmolLM2-135M-Instruct as the model `m`."""

    def __init__(self, live, model):
        self._live = live
        self.model = model  # its file
        self.url = f"http://127.0.0.1:{live.port}"
        self.v1 = self.url + "/v1"

    @functools.cache
    def answer(self, question=QUESTION):
        """The server's answer at temperature 0, asked for without a framework."""
        status, _, text = self._live.ask("POST", "/v1/chat/completions", {
            "messages": [{"role": "user", "content": question}], "max_tokens": LIMIT, "temperature": 0})
        assert status == 200, text
        choice = json.loads(text)["choices"][0]
        assert choice["finish_reason"] == ("length" if question == QUESTION else "stop"), text
        return choice["message"]["content"]


def main(name, checks, environment=None, options=()):
    """Installs what NAME.txt pins, starts a server, and runs the functions check_* of `checks` with it, which may be coroutines. The command line
    is KVASIR [CHECK...]. Where the model or a package is missing, the program ends: skipped (77)."""
    kvasir = pathlib.Path(sys.argv[1]).resolve()
    model = real_model_or_skip()
    import_or_skip(kvasir.parent.parent, f"{name}_client", HERE / f"{name}.txt", minutes=4)
    with LiveServer(str(kvasir), str(model), *options, environment=environment) as live:
        server = Server(live, model)
        for check, run in list(checks.items()):
            if check.startswith("check_") and (len(sys.argv) < 3 or check in sys.argv[2:]):
                began = time.monotonic()
                done = run(server)
                if asyncio.iscoroutine(done):
                    asyncio.run(done)
                print(f"{check}: ok ({time.monotonic() - began:.1f} s)", flush=True)
