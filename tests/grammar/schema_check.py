"""Random texts of each schema's grammar, validated by python3-jsonschema: schema_check.py MASK_SERVER [MODEL [TEXTS [SEED]]]

Every text must be valid, or, where the walk was cut, the beginning of a JSON text. TEXTS: of each schema; 2.
"""

import pathlib
import random
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "support"))

from masks import Masks, all_schemas, is_prefix, loads, validator  # noqa: E402
from real_model import real_model_or_skip  # noqa: E402


def check_validator():
    """The validator tells decimals apart that a double does not."""
    tiny = "0" * 25 + "1"
    for schema, text, wanted in (({"maximum": 0.1}, "0.1", True), ({"maximum": 0.1}, "0.1" + tiny, False),
                                 ({"exclusiveMinimum": 0.1}, "0.1" + tiny, True), ({"exclusiveMinimum": 0.1}, "0.1000", False),
                                 ({"multipleOf": 0.1}, "0.3", True), ({"multipleOf": 0.1}, "0.3" + tiny, False),
                                 ({"const": 0.3}, "0.3" + tiny, False), ({"maximum": 9007199254740992}, "9007199254740993", False)):
        assert validator(schema).is_valid(loads(text)) == wanted, (schema, text)


def main():
    check_validator()
    program = sys.argv[1]
    model, texts, seed = (sys.argv[2:] + [None, "2", "1"][len(sys.argv) - 2:])[:3]
    model, texts, seed = model or str(real_model_or_skip()), int(texts), int(seed)
    masks = Masks(program, model)
    draw = random.Random(seed)
    wrong, ended, cut = [], 0, 0
    begin = time.monotonic()
    for each in all_schemas():
        answer = masks.compile("json_schema", each["schema"], compact=draw.random() < 0.5)
        if not answer["ok"]:
            wrong.append(f"{each['name']} is refused: {answer['error']}")
            continue
        check = validator(each["schema"])
        for _ in range(texts):
            text, whole = masks.walk(draw)
            if not whole:
                cut += 1
                if not is_prefix(text):
                    wrong.append(f"{each['name']}: no beginning of JSON: {text!r}")
                continue
            ended += 1
            try:
                found = next(iter(check.iter_errors(loads(text))), None)
            except ValueError as error:
                found = error
            if found is not None:
                wrong.append(f"{each['name']}: {str(getattr(found, 'message', found))[:200]}: {text[:300]!r}: {each['schema']}")
    print(f"{ended} texts ended and are checked, {cut} were cut; {time.monotonic() - begin:.1f} s")
    if cut > ended // 4:
        wrong.append("too many texts were cut for the check to say much")
    sys.exit("\n".join(wrong[:40] + [f"{len(wrong)} are wrong"]) if wrong else 0)


if __name__ == "__main__":
    main()
