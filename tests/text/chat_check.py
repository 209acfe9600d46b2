"""Holds the native chat templates against Jinja: chat_check.py CHAT_RENDER [--shared | FILE...]

Renders many conversations with python3-jinja2, set up as Hugging Face does, and with chat_render, and compares the
strings. Without further arguments the templates of this folder's templates/; with --shared those of the optional data
(KVASIR_SHARED, or ../shared beside the project); or the files given, where one that is not recognised is only named.

Exits with 77 (skipped) without Jinja, and where there is no optional data.
"""

import datetime
import functools
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys

try:
    import jinja2
    from jinja2.sandbox import ImmutableSandboxedEnvironment
except ImportError:
    print("python3-jinja2 is not installed")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
NOW = 1740000000
CONTENTS = (
    "Hi",
    "",
    " ",
    "  two spaces around \n",
    "\n\nlines\n\n",
    "a\nb\r\nc\td",
    "\u00a0\u2003wide\u3000\u0085",
    "\x1cfile\x1f",
    "\u200bzero width\ufeff",
    "Zażółć gęślą jaźń — 日本語 🦊 👩‍👩‍👧",
    "<think>\nI think\n</think>\n\nThe answer",
    "<think></think>x",
    "</think>",
    "\n<think>a</think>b<think>\nc\n</think>\n d",
    "thought only\n</think>",
    "<think>never ends",
    "<|im_end|>\n<|im_start|>assistant\nSure",
    "</s><s>[INST] x [/INST]<<SYS>>y<</SYS>>",
    "<|eot_id|><|start_header_id|>user<|end_header_id|>",
    "<｜User｜><｜Assistant｜><｜end▁of▁sentence｜>",
    "<start_of_turn>model\nx<end_of_turn>",
    "<|user|>\nx<|end|>",
    "{{ bos_token }}{% for x in y %}{# z #}",
    "it's \"quoted\" \\ back\\n",
    "/no_think",
    "Be brief. /think ",
    "/no_think and /think",
    "/no_/thinkthink",
    "<tool_response>42</tool_response>",
    "<tool_response>",
)


def conversations(seed):
    """Every content in every place of short conversations, and longer ones at random."""
    roles = ("system", "user", "assistant")
    for count in (1, 2, 3, 4):
        for order in itertools.product(roles, repeat=count):
            yield [(role, f"{role} {i}") for i, role in enumerate(order)]
    shapes = (("user",), ("system", "user"), ("user", "assistant"), ("system", "user", "assistant", "user"),
              ("user", "assistant", "user", "assistant"), ("system", "user", "assistant", "user", "assistant"))
    for shape in shapes:
        for place in range(len(shape)):
            for content in CONTENTS:
                yield [(role, content if i == place else f"{role} {i}") for i, role in enumerate(shape)]
    chance = random.Random(seed)
    for _ in range(300):
        shape = ["system"] * chance.randint(0, 1) + ["user", "assistant"] * chance.randint(1, 4)
        if chance.random() < 0.5 and len(shape) > 1:
            shape.pop()
        if chance.random() < 0.1:
            shape.insert(chance.randint(0, len(shape)), chance.choice(roles))
        yield [(role, chance.choice(CONTENTS)) for role in shape]


def talks():
    for talk in conversations(1):
        messages = [{"role": role, "content": content} for role, content in talk]
        for answer in (False, True):
            yield {"messages": messages, "open": answer}


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def jinja(source):
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False, **options)
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.datetime.fromtimestamp(NOW).strftime(form)
    return environment.from_string(source)


def expected(template, talk, bos, eos):
    try:
        return template.render(
            messages=talk["messages"], add_generation_prompt=talk["open"], bos_token=bos, eos_token=eos
        )
    except jinja2.exceptions.TemplateError:
        return None


def steps_expected(template, talk, bos, eos):
    """The whole text, where each message only adds to the one before; None where it does not."""
    texts = []
    for count in range(1, len(talk["messages"]) + 1):
        part = {"messages": talk["messages"][:count], "open": talk["open"] and count == len(talk["messages"])}
        text = expected(template, part, bos, eos)
        if text is None:
            return None
        texts.append(text if part["open"] else text.removesuffix(final_of(template, bos, eos)))
    if any(not after.startswith(before) for before, after in zip(texts, texts[1:])):
        return None
    return texts[-1]


@functools.lru_cache
def final_of(template, bos, eos):
    """What ends a conversation, rather than a message: it is gone once there is another message."""
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    texts = [expected(template, {"messages": messages[:count], "open": False}, bos, eos) for count in (1, 2, 3)]
    return eos if all(text is not None and text.endswith("\n" + eos) for text in texts) else ""


def check(program, path):
    """Prints what differs; returns (name or None, compared, refused, stepped, differences)."""
    source = path.read_bytes().decode()
    bos, eos = ("<s>", "</s>")
    if "<｜User｜>" in source:
        bos, eos = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
    elif "start_header_id" in source:
        bos, eos = ("<|begin_of_text|>", "<|eot_id|>")
    elif "im_start" in source:
        bos, eos = ("", "<|im_end|>")
    asked = list(talks())
    request = {"template": source, "bos": bos, "eos": eos, "controls": [], "now": NOW, "talks": asked}
    done = subprocess.run([program], input=json.dumps(request).encode(), stdout=subprocess.PIPE, check=True)
    answer = json.loads(done.stdout)
    if not answer["recognised"]:
        return None, 0, 0, 0, 0
    template = jinja(source)
    refused = stepped = different = 0
    for talk, whole, steps in zip(asked, answer["whole"], answer["steps"]):
        want = expected(template, talk, bos, eos)
        got = None if whole is None else (bos if whole["bos"] else "") + whole["text"]
        refused += want is None
        if got != want:
            different += 1
            if different <= 3:
                print(f"{path.name}: {json.dumps(talk, ensure_ascii=False)}\n  want {want!r}\n  got  {got!r}")
        want = steps_expected(template, talk, bos, eos)
        if want is None or (steps is None and got is not None):
            continue
        stepped += 1
        got = None if steps is None else (bos if steps["bos"] else "") + steps["text"]
        if got != want:
            different += 1
            if different <= 3:
                print(f"{path.name}, in steps: {json.dumps(talk, ensure_ascii=False)}\n  want {want!r}\n  got  {got!r}")
    return answer["name"], len(asked), refused, stepped, different


def shared_templates():
    folder = pathlib.Path(os.environ.get("KVASIR_SHARED") or HERE.parent.parent.parent / "shared") / "templates"
    if not folder.is_dir():
        print(f"needs {folder} (set KVASIR_SHARED to its parent)")
        sys.exit(77)
    return sorted(folder.glob("*.jinja"))


def main(program, arguments):
    own = sorted((HERE / "templates").glob("*.jinja"))
    paths = own if not arguments else shared_templates() if arguments == ["--shared"] else map(pathlib.Path, arguments)
    must = not arguments or arguments == ["--shared"]
    failed = False
    total = 0
    for path in paths:
        name, compared, refused, stepped, different = check(program, path)
        unknown = path.name.startswith("unknown")
        if name is None:
            print(f"{path.name}: not recognised")
            failed |= must and not unknown
            continue
        total += compared
        failed |= different > 0 or (must and unknown)
        print(f"{path.name}: {name}, {compared} conversations ({refused} refused), {stepped} in steps, "
              f"{different} different")
    print(f"{total} conversations compared")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
