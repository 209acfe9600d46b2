"""Masks of a grammar from mask_server, walks along them, and what JSON texts are checked with."""

import decimal
import json
import os
import re
import subprocess
import sys
import unicodedata

import numpy

SCHEMAS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "schemas", "schemas.jsonl")
decimal.DefaultContext.prec = 300  # a remainder of long numbers is exact, in all threads that begin from here on
decimal.setcontext(decimal.DefaultContext)


def all_schemas():
    with open(SCHEMAS, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class Masks:
    """A mask_server with a model's vocabulary. `tokens`: the bytes of each token, empty for control tokens."""

    def __init__(self, program, model):
        self.process = subprocess.Popen([program, model], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        answer = self.ask(vocabulary=True)
        self.tokens = [bytes.fromhex(token) for token in answer["tokens"]]
        self.ends = set(answer["ends"])
        self.closing = numpy.array([token[:1] in (b'"', b"}", b"]", b",") or token in (b":", b"n", b"t", b"0", b"1")
                                    for token in self.tokens])

    def ask(self, **request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"mask_server ended with {self.process.wait()} at {str(request)[:500]}")
        return json.loads(line)

    def compile(self, kind, text, **options):
        return self.ask(compile={"kind": kind, "text": text if isinstance(text, str) else json.dumps(text), **options})

    def mask(self):
        """The tokens that can follow, as an array of bools; ends included. Fails if there is none."""
        answer = self.ask(mask=True)
        assert "error" not in answer, answer
        bits = numpy.unpackbits(numpy.frombuffer(bytes.fromhex(answer["mask"]), dtype=numpy.uint8), bitorder="little")
        return bits[:len(self.tokens)].astype(bool), answer

    def accept(self, token):
        answer = self.ask(accept=int(token))
        assert answer["ok"], (answer, self.tokens[token])

    def draw(self, mask, random, bias=0.3):
        """A token of a mask, or None for the end. With `bias` it is one that tends to end a string, list or object."""
        allowed = numpy.flatnonzero(mask)
        assert len(allowed), "no token can follow"
        inner = [token for token in allowed if token not in self.ends] if len(allowed) < 64 else allowed
        if len(inner) < len(allowed) and (not inner or random.random() < 0.3):
            return None
        if len(inner) >= 64:
            if any(mask[end] for end in self.ends) and random.random() < 0.3:
                return None
            near = numpy.flatnonzero(mask & self.closing)
            if len(near) and random.random() < bias:
                inner = near
        while True:
            token = int(inner[random.randrange(len(inner))])
            if token not in self.ends:
                return token

    def walk(self, random, most=150):
        """A random text of the compiled grammar from its start, and whether it ended."""
        self.ask(restart=True)
        text = b""
        for step in range(most):
            token = self.draw(self.mask()[0], random, 0.3 if step < most // 2 else 0.8)
            if token is None:
                return text, True
            self.accept(token)
            text += self.tokens[token]
        return text, False


def loads(text):
    """A JSON text's value with exact numbers."""
    def fail(name):
        raise ValueError(f"{name} is no JSON")
    return json.loads(text, parse_float=decimal.Decimal, parse_constant=fail)


def is_prefix(text):
    """Whether some continuation makes bytes a JSON text."""
    for size in range(4):  # a character may be cut
        try:
            text = text[:len(text) - (size > 0)].decode() if isinstance(text, bytes) else text
            break
        except UnicodeDecodeError:
            text = text[:-1] if size == 0 else text
            continue
    closers, in_string, escaped = [], False, False
    for c in text:
        if in_string:
            in_string, escaped = escaped or c != '"', not escaped and c == "\\"
        elif c == '"':
            in_string = True
        elif c in "{[":
            closers.append("}" if c == "{" else "]")
        elif c in "}]":
            if not closers or closers.pop() != c:
                return False
    middles = ["", "0", "null", "ull", "ll", "l", "rue", "ue", "e", "alse", "lse", "se", '"":0', ":0", '"'] if not in_string else [
        fill + '"' for fill in ["", "\\", '"', "n", "0", "00", "000", "0000", "\\udc00", "udc00", "dc00", "c00", "u0000"]]
    for middle in middles:
        for behind in ("", ":0"):
            try:
                json.loads(text + middle + behind + "".join(reversed(closers)))
                return True
            except ValueError:
                continue
    return False


def category(name):
    """A class of Python's regular expressions for a general category."""
    return "".join(chr(c) for c in range(0x10000) if unicodedata.category(chr(c)).startswith(name))


def for_validator(schema):
    """A schema in terms of 2020-12 and of Python's regular expressions."""
    if isinstance(schema, list):
        return [for_validator(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: value if key in ("const", "enum") else for_validator(value) for key, value in schema.items()}
    if isinstance(schema.get("items"), list):
        schema["prefixItems"] = schema.pop("items")
        if "additionalItems" in schema:
            schema["items"] = schema.pop("additionalItems")
    if schema.get("nullable") is True and "type" in schema:
        types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        schema["type"] = types + ["null"]
    if isinstance(schema.get("pattern"), str):
        schema["pattern"] = re.sub(r"\\p\{(\w+)\}", lambda found: f"[{category(found[1])}]", schema["pattern"])
    return schema


# Formats that python3-jsonschema checks only with packages of their own, or not at all.
FORMATS = {
    "date-time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)", "time": r"\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)",
    "duration": r"P(?!$)(\d+W|(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+S)?)?)",
    "hostname": r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*",
    "uri": r"[A-Za-z][A-Za-z0-9+.-]*:(//[^/?#\s]*)?[^?#\s]*(\?[^#\s]*)?(#\S*)?", "color": "#[0-9a-fA-F]{6}",
    "byte": r"([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?",
}


def validator(schema):
    """jsonschema's validator of a schema, with checks of formats."""
    import jsonschema
    formats = jsonschema.FormatChecker()
    for name, regex in FORMATS.items():
        formats.checks(name)(lambda text, regex=regex: not isinstance(text, str) or re.fullmatch(regex, text) is not None)
    exact = json.loads(json.dumps(for_validator(schema)), parse_float=decimal.Decimal)
    return jsonschema.Draft202012Validator(exact, format_checker=formats)
