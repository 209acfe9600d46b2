"""Holds the chat templates against Jinja: chat_check.py CHAT_RENDER [--shared | --mutants N | FILE...]

Renders many conversations with python3-jinja2, set up as Hugging Face does, and with chat_render, and compares the
strings: of whole conversations, and of those written message by message where each message only adds to the text before
it. Without further arguments the templates of this folder's templates/; with --shared those of the optional data
(KVASIR_SHARED, or ../shared beside the project); with --mutants N our own, changed at random N times; or the files
given.

Exits with 77 (skipped) without Jinja, and where there is no optional data.
"""

import functools
import itertools
import json
import os
import pathlib
import random
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "jinja"))

from reference_jinja import NOW, environment, jinja2  # noqa: E402, after its folder is named

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


# What a template may raise by which it refuses a conversation. A mutant may fail in any way.
refusals = (jinja2.exceptions.TemplateError,)


def expected(template, talk, bos, eos):
    try:
        return template.render(
            messages=talk["messages"], add_generation_prompt=talk["open"], bos_token=bos, eos_token=eos, tools=None,
            documents=None
        )
    except refusals:
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


def ended(template, talk, want, got, bos, eos):
    """Whether `got` is `want` with the end of its last message, which the template writes once another follows."""
    if talk["open"] or want is None or got is None or not got.startswith(want):
        return False
    more = {"messages": talk["messages"] + [{"role": "user", "content": "x"}], "open": False}
    return (expected(template, more, bos, eos) or "").startswith(got)


@functools.lru_cache
def final_of(template, bos, eos):
    """What ends a conversation, rather than a message: it is gone once there is another message."""
    messages = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    texts = [expected(template, {"messages": messages[:count], "open": False}, bos, eos) for count in (1, 2, 3)]
    unasked = "<|start_header_id|>assistant<|end_header_id|>\n\n"  # of a template that always opens an answer
    if all(text is not None and text.endswith(unasked) for text in texts):
        return unasked
    return eos if all(text is not None and text.endswith("\n" + eos) for text in texts) else ""


def tokens_of(source):
    """The pieces of BOS and EOS that fit a template."""
    if "<｜User｜>" in source:
        return "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"
    if "start_header_id" in source:
        return "<|begin_of_text|>", "<|eot_id|>"
    return ("", "<|im_end|>") if "im_start" in source else ("<s>", "</s>")


def ask(program, source, asked):
    bos, eos = tokens_of(source)
    request = {"template": source, "bos": bos, "eos": eos, "controls": [], "now": NOW, "talks": asked}
    done = subprocess.run([program], input=json.dumps(request).encode(), stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def text_of(answer, bos):
    return None if answer is None else (bos if answer["bos"] else "") + answer["text"]


class Differences:
    """Counts what differs, and prints the first few."""

    def __init__(self, name):
        self.name, self.count = name, 0

    def compare(self, talk, want, got, how=""):
        if want == got:
            return
        self.count += 1
        if self.count <= 3:
            print(f"{self.name}{how}: {json.dumps(talk, ensure_ascii=False)}\n  want {want!r}\n  got  {got!r}")


def check(program, path):
    """Prints what differs; returns (compared, refused, stepped, differences)."""
    source = path.read_bytes().decode()
    bos, eos = tokens_of(source)
    asked = list(talks())
    answer = ask(program, source, asked)
    template = None if broken(source) else environment().from_string(source)
    different = Differences(path.name)
    refused = stepped = 0
    for talk, whole, steps in zip(asked, answer["whole"], answer["steps"]):
        want = expected(template, talk, bos, eos) if template else None
        refused += want is None
        different.compare(talk, want, text_of(whole, bos))
        want = steps_expected(template, talk, bos, eos) if template else None
        if want is not None and (steps is not None or whole is None):
            stepped += 1
            got = text_of(steps, bos)
            if not ended(template, talk, want, got, bos, eos):
                different.compare(talk, want, got, ", in steps")
    return len(asked), refused, stepped, different.count


def broken(source):
    """Whether Jinja refuses a source."""
    try:
        environment().from_string(source)
    except jinja2.exceptions.TemplateError:
        return True
    return False


def mutant(source, chance):
    """A source with one or two pieces left out, put in, or exchanged."""
    pieces = re.findall(r"\w+|\s+|[^\w\s]", source)
    strange = ("|trim", ".strip()", "not ", "-", "+", " or ", " and ", "loop.last", "loop.first", "'", "\n", " ", "~",
               "{%- endif %}", "{% else %}", "message.role == 'tool'", "tools", "[1:]", "{{", "}}", "%}", "system",
               "user")
    for _ in range(chance.randint(1, 2)):
        at, way = chance.randrange(len(pieces)), chance.randrange(4)
        if way == 0:
            del pieces[at : at + chance.choice((1, 1, 2, 3, 6))]
        elif way == 1:
            pieces.insert(at, chance.choice(strange))
        elif way == 2:
            other = chance.randrange(len(pieces))
            pieces[at], pieces[other] = pieces[other], pieces[at]
        else:
            pieces[at] = chance.choice(pieces)
    return "".join(pieces)


def check_mutants(program, paths, count):
    global refusals
    refusals = (Exception,)
    chance = random.Random(count)
    asked = list(talks())[::23]
    rendered = failed = 0
    for number in range(count):
        path = chance.choice(paths)
        source = mutant(path.read_bytes().decode(), chance)
        bos, eos = tokens_of(source)
        answer = ask(program, source, asked)
        if broken(source):
            continue  # jinja2 looks further than we do, at names of filters that are never reached
        template = environment().from_string(source)
        different = Differences(f"mutant {number} of {path.name}")
        for talk, whole in zip(asked, answer["whole"]):
            want = expected(template, talk, bos, eos)
            rendered += want is not None
            if want is None or " at 0x" not in want:  # an address is no text to agree on
                different.compare(talk, want, text_of(whole, bos))
        if different.count:
            failed += 1
            print(source)
    print(f"{count} mutants, {rendered} conversations rendered, {failed} mutants different")
    if rendered < count:
        print("too few were rendered for the comparison to mean anything")
        failed = True
    sys.exit(1 if failed else 0)


def shared_templates():
    folder = pathlib.Path(os.environ.get("KVASIR_SHARED") or HERE.parent.parent.parent / "shared") / "templates"
    if not folder.is_dir():
        print(f"needs {folder} (set KVASIR_SHARED to its parent)")
        sys.exit(77)
    return sorted(folder.glob("*.jinja"))


def main(program, arguments):
    own = sorted((HERE / "templates").glob("*.jinja"))
    if arguments[:1] == ["--mutants"]:
        check_mutants(program, own, int(arguments[1]))
    paths = own if not arguments else shared_templates() if arguments == ["--shared"] else map(pathlib.Path, arguments)
    failed = False
    total = 0
    for path in paths:
        compared, refused, stepped, different = check(program, path)
        total += compared
        failed |= different > 0
        if paths is own and refused == compared and path.name != "broken.jinja":
            print(f"{path.name}: the reference refuses every conversation, so nothing is compared")
            failed = True
        print(f"{path.name}: {compared} conversations ({refused} refused), {stepped} in steps, {different} different")
    print(f"{total} conversations compared")
    sys.exit(1 if failed or total == 0 else 0)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
