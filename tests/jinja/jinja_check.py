"""Holds the Jinja interpreter against python3-jinja2: jinja_check.py JINJA_RENDER [--shared | --expressions N | FILE...]

Renders with jinja2, set up as transformers does, and with jinja_render: both write the same text, or both fail.
Without further arguments the templates of tests/chat/templates, with many conversations; with --shared those of the
optional data (KVASIR_SHARED, or ../shared beside the project); with --expressions N as many random expressions; or the
files given.

Exits with 77 (skipped) without Jinja, and where there is no optional data.
"""

import copy
import itertools
import json
import os
import pathlib
import random
import subprocess
import sys
import warnings

from reference_jinja import NOW, environment

HERE = pathlib.Path(__file__).resolve().parent
CONTENTS = ("Hi", "", " ", "  two \n", "\n\nlines\n\n", "\u00a0\u2003wide\u3000", "Zażółć — 日本語 🦊",
            "<think>\nI think\n</think>\n\nThe answer", "</think>", "\n<think>a</think>b", "<|im_end|>\n<|im_start|>",
            "{{ bos_token }}{% for x in y %}", "it's \"quoted\" \\ back\\n", "/no_think", "<tool_response>42</tool_response>")
TOOLS = [{"type": "function", "function": {"name": "look", "description": "Looks \"é\"", "parameters": {
    "type": "object", "properties": {"place": {"type": "string", "description": "where"}, "n": {"type": "integer"}},
    "required": ["place"]}}}]
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "abcdef123", "type": "function", "function": {"name": "look", "arguments": {"place": "Łódź", "n": 2}}}]}


def compiled(made, source):
    """What jinja2 makes of a source: the template, or why there is none."""
    try:
        return made.from_string(source)
    except Exception as error:  # any: this is what a caller of transformers would see
        return error


def expected(template, variables):
    """The text, or None where jinja2 fails, with why."""
    if isinstance(template, Exception):
        return None, repr(template)
    try:
        return template.render(**copy.deepcopy(variables)), ""  # |indent may change a list
    except Exception as error:
        return None, repr(error)


def conversations(seed):
    roles = ("system", "user", "assistant")
    for count in (1, 2, 3):
        for order in itertools.product(roles, repeat=count):
            yield {"messages": [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(order)]}
    for content in CONTENTS:
        for place in range(4):
            shape = ("system", "user", "assistant", "user")
            yield {"messages": [{"role": role, "content": content if i == place else role}
                                for i, role in enumerate(shape)]}
    chance = random.Random(seed)
    for _ in range(100):
        messages = [{"role": "system", "content": chance.choice(CONTENTS)}] * chance.randint(0, 1)
        for _ in range(chance.randint(1, 3)):
            messages.append({"role": "user", "content": chance.choice(CONTENTS)})
            if chance.random() < 0.3:
                messages += [CALL, {"role": "tool", "name": "look", "tool_call_id": "abcdef123", "content": "[1]"}]
            messages.append({"role": "assistant", "content": chance.choice(CONTENTS)})
            if chance.random() < 0.2:
                messages[-1]["reasoning_content"] = chance.choice(CONTENTS)
        if chance.random() < 0.6:
            messages.pop()
        talk = {"messages": messages}
        if chance.random() < 0.5:
            talk["tools"] = TOOLS
        if chance.random() < 0.3:
            talk["enable_thinking"] = chance.random() < 0.5
        if chance.random() < 0.1:
            talk["documents"] = [{"title": "T", "text": "body"}]
        yield talk
    yield {"messages": []}
    yield {"messages": [{"role": "user", "content": [{"type": "text", "text": "part"}]}]}
    yield {"messages": [{"role": "user", "content": None}, {"role": "robot", "content": 5}]}


def talks():
    for talk in conversations(1):
        for answer in (False, True):
            yield {"bos_token": "<s>", "eos_token": "</s>", **talk, "add_generation_prompt": answer}


class Random:
    """Random templates of a grammar: expressions, and small statements around them."""

    NAMES = ("n", "s", "l", "d", "missing", "none", "true", "x", "m", "f")
    FILTERS = ("trim", "length", "upper", "lower", "first", "last", "list", "string", "tojson", "int", "float", "abs",
               "sort", "unique|list", "reverse|list", "join(',')", "default('d')", "default('d', true)", "title",
               "capitalize", "map('string')|list", "select|list", "reject('none')|list", "items|list", "dictsort",
               "replace('a', 'bb')", "indent(2)", "indent(1, true)", "sum", "min", "max", "round", "round(1)", "count",
               "tojson(indent=2)", "selectattr('a')|list", "map(attribute='a')|list", "join('-', attribute='a')",
               "rejectattr('a', 'equalto', 1)|list", "sort(reverse=true)", "map('upper')|join")
    TESTS = ("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float",
             "boolean", "true", "false", "odd", "even", "eq(1)", "in([1, 'a'])", "divisibleby 2", "not none",
             "equalto 'a'", "not string", "callable", "lower", "upper", "ne 1", "gt 1", "sameas true")
    METHODS = ("strip()", "split()", "split('a')", "split('a', 1)", "rsplit('a', 1)", "rsplit(none, 1)", "lstrip()",
               "rstrip('a')", "upper()", "title()", "capitalize()", "startswith('a')", "endswith(('a', 'b'))", "find('b')",
               "replace('a', '')", "replace('', '-')", "join(['a', 'b'])", "items()", "keys()", "values()", "get('a')",
               "get('q', 2)", "a", "b", "index(1)", "count('a')", "partition('a')", "items()|list", "append(1)", "lower()")
    OPERATORS = ("+", "-", "*", "/", "//", "~", "==", "!=", "<", "<=", ">", ">=", "in", "not in", "and", "or")

    def __init__(self, seed):
        self.chance = random.Random(seed)

    def literal(self):
        return self.chance.choice(("0", "1", "2", "-3", "2.5", "1e3", "'a'", "'abca'", "' a b '", "'Żółw ß'", "''", "[]",
                                   "[1, 2, 3]", "['b', 'A', 'a']", "{'a': 1}", "{}", "(1, 'a')", "[{'a': 1}, {'a': 2}]",
                                   "range(3)|list", '"it\'s\\n"', "true", "none", "[none, 1.0]", "'12'", "' 3.7 '"))

    def expression(self, depth=None):
        depth = self.chance.choice((1, 1, 2, 3)) if depth is None else depth
        pick, sub = self.chance.choice, lambda: self.expression(depth - 1)
        if depth == 0:
            return pick((self.literal(), pick(self.NAMES)))
        kind = self.chance.randrange(13)
        if kind < 2:
            return f"{sub()} {pick(self.OPERATORS)} {sub()}"
        if kind < 4:
            return f"({sub()})|{pick(self.FILTERS)}"
        if kind == 4:
            return f"({sub()}) is {pick(self.TESTS)}"
        if kind < 7:
            return f"({sub()}).{pick(self.METHODS)}"
        if kind == 7:
            if self.chance.random() < 0.3:
                return f"({sub()})[{pick((sub(), '0', '-1'))}]"
            # The condition keeps jinja2 from computing the slice of a constant, where it forgives what it else does not.
            return f"(({sub()}) if n else s)[{pick(('1:', ':-1', '::-1', '::2', '-2:9'))}]"
        if kind == 8:
            return f"{sub()} if {sub()} else {sub()}"
        if kind == 9:
            return pick(("not ", "-", "+")) + f"({sub()})"
        if kind == 10:
            return f"[{sub()}, {sub()}]"
        if kind == 11:
            return f"({pick(('n', 'f', '7', '2.5'))}) % ({pick(('n', '-3', '2', '0.5', 'true'))})"
        return self.literal()

    def template(self):
        e, space = self.expression, lambda: self.chance.choice(("", "", " ", "\n", "  \n ", "\t"))
        sign = lambda: self.chance.choice(("", "", "-", "+"))
        end = lambda: self.chance.choice(("", "", "-"))
        kind = self.chance.randrange(10)
        if kind < 6:
            return f"{{{{ {e()} }}}}"
        parts = {6: ("for x in " + e(), "{{ x }}{{ loop.index }}" + space(), "endfor"), 7: ("if " + e(), "y", "endif"),
                 8: ("set x = " + e(), "", ""), 9: ("set y", "{{ " + e(2) + " }}", "endset")}[kind]
        text = space() + f"{{%{sign()} {parts[0]} {end()}%}}" + space() + parts[1] + space()
        if parts[2]:
            text += f"{{%{sign()} {parts[2]} {end()}%}}" + space()
        return text + "{{ x }}{{ y }}" + space()


VARIABLES = {"n": 7, "s": "ab Ca\n", "l": [3, 1, 2], "d": {"b": 2, "a": "x"}, "x": None,
             "m": [{"a": "q", "role": "user"}, {"a": None}], "f": -0.5}


def ask(program, requests):
    lines = "".join(json.dumps(request) + "\n" for request in requests)
    done = subprocess.run([program], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.decode().split("\n")[:-1]]


def compare(program, cases):
    """Cases are (name, source, sets of variables). Prints the first differences and returns how many there are."""
    warnings.simplefilter("ignore", SyntaxWarning)  # of the Python that jinja2 makes of odd expressions
    made, compared, failed, different = environment(), 0, 0, 0
    requests = [{"template": source, "now": NOW, "variables": sets} for _, source, sets in cases]
    for (name, source, sets), answers in zip(cases, ask(program, requests), strict=True):
        template = compiled(made, source)
        for variables, answer in zip(sets, answers, strict=True):
            want, why = expected(template, variables)
            got = answer.get("text")
            compared += 1
            failed += want is None
            if want == got or (want is not None and " at 0x" in want):  # an address is no text to agree on
                continue
            different += 1
            if different <= 20:
                shown = {} if variables is VARIABLES else variables
                print(f"{name}: {json.dumps(shown, ensure_ascii=False)[:400]}\n  want {want!r} {why}\n"
                      f"  got  {got!r} {answer.get('error', '')}")
    print(f"{compared} compared, {failed} fail in Jinja, {different} differ")
    return different


def main():
    program, arguments = sys.argv[1], sys.argv[2:]
    if arguments[:1] == ["--expressions"]:
        maker = Random(1)
        sources = [maker.template() for _ in range(int(arguments[1]))]
        return compare(program, [(source, source, [VARIABLES]) for source in sources])
    if arguments == ["--shared"]:
        shared = pathlib.Path(os.environ.get("KVASIR_SHARED", HERE.parents[2] / "shared"))
        paths = sorted((shared / "templates").glob("*.jinja"))
    else:
        paths = [pathlib.Path(path) for path in arguments] or sorted((HERE.parent / "chat/templates").glob("*.jinja"))
    if not paths:
        print("no templates at hand")
        return 77
    return compare(program, [(path.name, path.read_bytes().decode(), list(talks())) for path in paths])


if __name__ == "__main__":
    found = main()
    sys.exit(found if found in (0, 77) else 1)
