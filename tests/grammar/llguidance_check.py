"""Masks against llguidance's along random walks: llguidance_check.py MASK_SERVER MODEL [SCHEMAS [STEPS]]

Both compile each schema where both support it, without white space. Every mask on the way must be equal bit by bit, but for the
differences that DIFFERENCES names. llguidance is installed beside the build once, from llguidance/requirements.txt; where that
fails, the check is skipped (77).
"""
import contextlib
import hashlib
import json
import os
import pathlib
import random
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent


def install(build):
    listed = HERE / "llguidance" / "requirements.txt"
    folder = build / f"llguidance-{hashlib.sha256(listed.read_bytes() + sys.version.encode()).hexdigest()[:12]}"
    if not folder.exists():
        part = pathlib.Path(f"{folder}.{os.getpid()}")
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps", "--no-compile",
               "--only-binary", ":all:", "--timeout", "20", "--retries", "1", "--target", str(part), "--requirement", str(listed)]
        try:
            ran = subprocess.run(pip, capture_output=True, text=True, timeout=300)
            problem = None if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["pip failed"])[-1]
        except subprocess.TimeoutExpired:
            problem = "pip took more than 5 minutes"
        if problem:
            shutil.rmtree(part, ignore_errors=True)
            print(f"skipped: pip could not install llguidance ({problem[:200]})")
            sys.exit(77)
        with contextlib.suppress(OSError):  # another run was faster
            part.rename(folder)
        shutil.rmtree(part, ignore_errors=True)
    sys.path.insert(0, str(folder))


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
        if (own != theirs).any():
            only_own = [masks.tokens[i] for i in numpy.flatnonzero(own & ~theirs)]
            only_theirs = [masks.tokens[i] for i in numpy.flatnonzero(~own & theirs)]
            differences.append((each, text, only_own, only_theirs))
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
    program, model = sys.argv[1], sys.argv[2]
    schemas = int(sys.argv[3]) if len(sys.argv) > 3 else 500
    steps = int(sys.argv[4]) if len(sys.argv) > 4 else 40
    install(pathlib.Path(program).parent.parent)
    import llguidance
    import numpy
    from masks import Masks, all_schemas
    masks = Masks(program, model)
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Wrapped(masks)), eos_token=sorted(masks.ends))
    draw = random.Random(7)
    differences, unsupported, compared, wrong = [], [], 0, []
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
    print(f"{compared} masks compared, {len(unsupported)} schemas that llguidance does not support")
    if os.environ.get("KVASIR_SHOW_DIFFERENCES"):
        seen = {}
        for each, text, own, theirs in differences:
            if seen.setdefault(each["name"], 0) < 1:
                print(each["name"], json.dumps(each["schema"])[:200], text, "only own", len(own), own[:8], "only theirs", len(theirs), theirs[:8], sep="\n   ")
            seen[each["name"]] += 1
    print(len(differences))
    sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
