"""Masks against llguidance's along random walks: llguidance_check.py MASK_SERVER [MODEL [SCHEMAS [STEPS]]]

Both compile each schema where both support it, without white space. Every mask on the way must be equal bit by bit, but for the
differences that DIFFERENCES names. llguidance is installed beside the build once, from llguidance/requirements.txt; where that
fails, the check is skipped (77).
"""
import json
import pathlib
import random
import re
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))

from pip_packages import import_or_skip  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402


def explicit(schema, root=True):
    """A schema that says what the two take for granted in different ways: without additionalProperties, an object that lists
    properties has no others for Kvasir, and any for llguidance."""
    if isinstance(schema, list):
        return [explicit(each, False) for each in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {key: value if key in ("const", "enum", "required") else
              {name: explicit(each, False) for name, each in value.items()} if key in ("properties", "$defs", "definitions") else
              explicit(value, False) for key, value in schema.items()}
    if (schema.get("properties") or schema.get("patternProperties")) and "additionalProperties" not in schema:
        schema["additionalProperties"] = False
    return schema


class Place:
    """Where in JSON a text ends once a token has been added, and what the token is part of there."""

    def __init__(self, text, token):
        self.in_string = self.escape = False  # the text ends in a string; the token has a part of an escape
        left = 0
        whole = text + token
        for i, c in enumerate(whole):
            if left:
                left -= 1
                if c == ord("u") and whole[i - 1:i] == b"\\":
                    left = 4
                self.escape = self.escape or i >= len(text)
            elif self.in_string and c == ord("\\"):
                left = 1
                self.escape = self.escape or i >= len(text)
            elif c == ord('"'):
                self.in_string = not self.in_string
            if i == len(text) - 1:
                self.was_in_string = self.in_string
        if not text:
            self.was_in_string = False
        found = re.search(rb"-?[0-9][0-9.eE+-]*$", text + token.rstrip(b"]},\n "))
        self.number = found[0] if found and not self.was_in_string else b""


# What each side allows and the other does not, by what: (who allows it, the reason, whether a token is a case of it). `schema` is
# the schema as text, and the token of an end is empty.
DIFFERENCES = {
    "escapes": ("both", "Kvasir allows the solidus and any character as an escape in free strings, and one form in patterns and constants, so "
                "that lengths and keys can be counted; llguidance escapes control characters alone, in all forms. Neither allows half of a "
                "surrogate pair.", lambda schema, place, token: place.escape),
    "exponents": ("llguidance", "Kvasir limits exponents to 2 digits, so that a number ends and a double holds it.",
                  lambda schema, place, token: b"e" in place.number.lower()),
    "digits": ("llguidance", "Kvasir limits numbers to 40 digits before and behind the point, and within limits to 20 behind it.",
               lambda schema, place, token: len(re.split(rb"\D", place.number.lstrip(b"-"))[-1]) > (20 if b"." in place.number else 40)),
    "zeros": ("Kvasir", "Within limits Kvasir allows zeros behind the last place, as in 7.00 for a multiple of 0.5; they change no value.",
              lambda schema, place, token: re.fullmatch(rb"-?\d+\.\d*?0*", place.number) is not None and (
                  re.fullmatch(rb"\.?0*", token.rstrip(b"]},")) is not None) and re.search("Minimum|minimum|aximum|multipleOf", schema)),
    "minus zero": ("llguidance", "Within limits Kvasir writes zero without a sign, for readers that tell -0 from 0.",
                   lambda schema, place, token: re.fullmatch(rb"-0?(\.0*)?", place.number) is not None),
    "2^53": ("both", "llguidance keeps limits as doubles, which round those beyond 2^53; Kvasir keeps their digits.",
             lambda schema, place, token: "90071992547409" in schema and len(place.number) > 14),
    "formats": ("llguidance", "Kvasir's emails, URIs, durations, host names and IPv6 addresses are the usual ones only, of bounded length, its dates "
                "have no leap days and seconds, and its times have capitals, as some validators want them.",
                lambda schema, place, token: re.search('"format": "(email|uri|duration|hostname|ipv6|date|time|date-time)"', schema) and (
                    place.was_in_string or token.startswith(b'"'))),
    "nullable": ("Kvasir", "Kvasir honours OpenAPI's nullable; llguidance ignores it.",
                 lambda schema, place, token: "nullable" in schema and b"null".startswith(token)),
    "Unicode classes": ("llguidance", r"In Kvasir \d, \w and \s are ASCII and \D, \W, \S exclude Unicode's, and '.' is no line break of ECMAScript: "
                        "engines differ on the others.",
                        lambda schema, place, token: re.search(r"\\\\[sSdDwW]|\.", schema) and place.was_in_string and '"pattern' in schema),
}


def explain(schema, text, token, own):
    """The name of the difference by which a token is allowed by one side alone, or None."""
    place = Place(text, token)
    for name, (who, _, holds) in DIFFERENCES.items():
        if who in ("both", "Kvasir" if own else "llguidance") and holds(schema, place, token):
            return name
    return None


class Wrapped:
    """A vocabulary as llguidance's TokenizerWrapper takes one."""

    def __init__(self, masks):
        self.eos_token_id = min(masks.ends)
        self.bos_token_id = None
        self.tokens = [token or f"<|control {i}|>".encode() for i, token in enumerate(masks.tokens)]
        self.special_token_ids = [i for i, token in enumerate(masks.tokens) if not token]

    def __call__(self, text):
        return []


def compare(masks, tokenizer, numpy, llguidance, each, draw, steps, differences):
    """Walks once; returns how many masks were compared, or None if llguidance does not support the schema."""
    schema = explicit(each["schema"] if each["schema"] is not True else {})
    # Without no_forcing llguidance leaves out tokens that its tokenizer would not choose for bytes that must follow.
    grammar = '%llguidance {"no_forcing": true}\nstart: %json ' + json.dumps({"x-guidance": {"whitespace_flexible": False}, **schema})
    matcher = llguidance.LLMatcher(tokenizer, grammar)
    if matcher.is_error():
        return None
    answer = masks.compile("json_schema", schema, compact=True)
    if not answer["ok"]:
        raise AssertionError(f"{each['name']}: llguidance takes it, Kvasir says {answer['error']}")
    text = b""
    for step in range(steps):
        own, _ = masks.mask()
        theirs = numpy.unpackbits(numpy.frombuffer(matcher.compute_bitmask(), dtype=numpy.uint8), bitorder="little")[:len(own)]
        theirs = theirs.astype(bool)
        if matcher.is_error():
            return None
        for end in masks.ends:  # llguidance sets the bit of one
            theirs[end] = theirs[min(masks.ends)]
        for i in numpy.flatnonzero(own != theirs):
            name = explain(json.dumps(schema), text, masks.tokens[i], own[i])
            if name is None:
                who = "Kvasir" if own[i] else "llguidance"
                raise AssertionError(f"{each['name']}: only {who} allows {masks.tokens[i] or 'the end'} behind {text}: {json.dumps(schema)}")
            differences[name] = differences.get(name, 0) + 1
        common = own & theirs
        if not common.any():
            return step
        token = masks.draw(common, draw, 0.3)
        if token is None:
            return step + 1
        masks.accept(token)
        if not matcher.consume_token(token):
            return step
        text += masks.tokens[token]
    return steps


def main():
    program = sys.argv[1]
    model, schemas, steps = (sys.argv[2:] + [None, "500", "30"][len(sys.argv) - 2:])[:3]
    model, schemas, steps = model or str(real_model_or_skip()), int(schemas), int(steps)
    import_or_skip(pathlib.Path(program).parent.parent, "llguidance", HERE / "llguidance" / "requirements.txt", minutes=5)
    import llguidance
    import numpy
    from masks import Masks, all_schemas
    masks = Masks(program, model)
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapped(masks)), eos_token=sorted(masks.ends))
    draw = random.Random(7)
    differences, unsupported, compared, wrong = {}, [], 0, []
    begin = time.monotonic()
    for each in all_schemas()[:schemas]:
        try:
            count = compare(masks, tokenizer, numpy, llguidance, each, draw, steps, differences)
        except AssertionError as error:
            wrong.append(str(error))
            continue
        if count is None:
            unsupported.append(each["name"])
        else:
            compared += count
    print(f"{compared} masks compared in {time.monotonic() - begin:.0f} s; {len(unsupported)} of {schemas} schemas are not supported by "
          "llguidance")
    for name, count in differences.items():
        print(f"{count} tokens differ by '{name}' ({DIFFERENCES[name][0]} allows them): {DIFFERENCES[name][1]}")
    if compared < 5 * schemas or len(unsupported) > schemas // 5:
        wrong.append("too few masks were compared")
    sys.exit("\n".join(wrong[:30] + [f"{len(wrong)} are wrong"]) if wrong else 0)


if __name__ == "__main__":
    main()
