"""Writes schemas.jsonl, the 500 schemas of the checks of grammars: make_schemas.py > schemas.jsonl

Each line is {"name": kind and number, "schema": ...}. The same Python writes the same file: the choices are drawn from a
generator with a fixed seed. Every keyword that Kvasir supports occurs in some schema, and in several combinations.
"""

import json
import random

PATTERNS = [r"^[a-z]{2,5}-\d+$", r"^[A-Z][a-z]*( [A-Z][a-z]*)?$", r"^(\d{3}-)?\d{4}$", r"^#[0-9a-fA-F]{6}$", r"cat|dog",
            r"^v\d+\.\d+\.\d+$", r"^[^\s@]+@[^\s@]+\.[a-z]{2,4}$", r"^$|^x+$", r"^(?:ab|cd){1,3}$", r"\d$", r"^[\w-]+$",
            r"^.{3,8}$", r"^[\u00e0-\u00ff]{1,4}$", r"^a?b*c+$", r"^\"quoted\"$", r"^[a-c]\\[d-f]$", r"^\S+\s\S+$", r"^\p{Lu}{2}$"]
FORMATS = ["date", "time", "date-time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "byte", "password", "color"]
WORDS = ["name", "age", "city", "tags", "id", "email", "status", "price", "count", "title", "body", "author", "kind", "width",
         "height", "items", "note", "code", "date", "score", "café", "two words", "quote\"d", "line\nbreak", "a/b", "x~y"]
DESCRIBED = {"description": "What the user said.", "title": "A title"}


def number(r):
    schema = {"type": r.choice(["integer", "number"])}
    whole = schema["type"] == "integer"

    def limit():
        return r.randint(-120, 1200) if whole else r.choice([r.randint(-50, 50), round(r.uniform(-40, 40), r.randint(1, 4))])
    low, high = sorted([limit(), limit()])
    if low + 2 >= high:
        high = low + 5
    if r.random() < .7:
        schema[r.choice(["minimum", "exclusiveMinimum"])] = low
    if r.random() < .7:
        schema[r.choice(["maximum", "exclusiveMaximum"])] = high
    if r.random() < .3:
        schema["multipleOf"] = r.choice([2, 3, 1]) if whole else r.choice([.5, .25, .1, 1, .01, 1.5])
    return schema


def string(r):
    schema = {"type": "string"}
    kind = r.random()
    if kind < .3:
        schema["pattern"] = r.choice(PATTERNS)
    elif kind < .6:
        schema["format"] = r.choice(FORMATS)
    if kind >= .6 or (kind < .3 and schema["pattern"] in (r"\d$", r"cat|dog", r"^[\w-]+$")):
        least = r.randint(0, 8)
        if r.random() < .6:
            schema["minLength"] = least
        if r.random() < .8:
            schema["maxLength"] = least + r.randint(4, 30)
    return schema


def constant(r):
    values = ["red", "green", 3, -1.5, None, True, False, "", "é", "tab\there", [1, "a"], {"k": [None]}, "\u007f", 0]
    if r.random() < .4:
        return {"const": r.choice(values)}
    return {"enum": r.sample(values, r.randint(1, 6))}


def leaf(r):
    return r.choice([number, string, constant, lambda _: {"type": "boolean"}, lambda _: {"type": "null"},
                     lambda _: {"type": r.sample(["string", "integer", "null", "boolean", "number"], 2)}])(r)


def array(r, depth):
    schema = {"type": "array"}
    kind = r.random()
    least = r.randint(0, 2)
    if kind < .6:
        schema["items"] = anything(r, depth - 1)
    elif kind < .85:
        schema["prefixItems"] = [anything(r, depth - 1) for _ in range(r.randint(1, 3))]
        schema["items"] = r.choice([False, True, leaf(r)])
        least = min(least, len(schema["prefixItems"]))
    else:  # before 2020-12
        schema["items"] = [leaf(r) for _ in range(r.randint(1, 3))]
        schema["additionalItems"] = r.choice([False, {"type": "integer"}])
        least = min(least, len(schema["items"]))
    if r.random() < .5:
        schema["minItems"] = least
    if r.random() < .6:
        schema["maxItems"] = least + r.randint(0, 3)
    return schema


def obj(r, depth):
    names = r.sample(WORDS, r.randint(1, 5))
    schema = {"type": "object", "properties": {name: anything(r, depth - 1) for name in names}}
    if r.random() < .8:
        schema["required"] = [name for name in names if r.random() < .6]
    if r.random() < .6:
        schema["additionalProperties"] = r.choice([False, False, leaf(r), True])
    if r.random() < .2:
        schema["patternProperties"] = {r.choice(["^x_", "_id$", "^[0-9]+$"]): leaf(r)}
        schema.setdefault("additionalProperties", False)
    if r.random() < .15:
        schema["maxProperties"] = max(len(schema.get("required", [])), r.randint(1, 4))
    if r.random() < .15:
        schema["minProperties"] = r.randint(0, min(len(names), schema.get("maxProperties", 9)))
    return schema


def dictionary(r, depth):
    schema = {"type": "object"}
    if r.random() < .5:
        schema["additionalProperties"] = anything(r, depth - 1)
    else:
        schema["patternProperties"] = {"^[a-z]+$": anything(r, depth - 1), "^[0-9]{1,3}$": leaf(r)}
        schema["additionalProperties"] = False
    if r.random() < .4 and "additionalProperties" in schema:
        schema["propertyNames"] = r.choice([{"maxLength": 8}, {"pattern": "^[a-z_]+$"}, {"minLength": 1, "maxLength": 4}])
    if r.random() < .4:
        schema["minProperties"] = r.randint(0, 1)
        schema["maxProperties"] = schema["minProperties"] + r.randint(1, 3)
    return schema


def union(r, depth):
    kind = r.random()
    if kind < .4:
        return {"anyOf": [anything(r, depth - 1) for _ in range(r.randint(2, 4))]}
    if kind < .6:
        return {"oneOf": [{"type": "string", "maxLength": 5}, number(r), {"type": "null"}]}
    tags = r.sample(["circle", "square", "line", "text", "group"], r.randint(2, 4))
    return {"oneOf" if kind < .8 else "anyOf": [
        {"type": "object", "properties": {"kind": {"const": tag}, r.choice(WORDS[:10]): leaf(r)},
         "required": ["kind"], "additionalProperties": False} for tag in tags]}


def anything(r, depth):
    if depth <= 0:
        return leaf(r)
    return r.choice([lambda: leaf(r), lambda: array(r, depth), lambda: obj(r, depth), lambda: dictionary(r, depth),
                     lambda: union(r, depth)])()


def conjunction(r):
    kind = r.random()
    if kind < .3:
        return {"allOf": [{"type": "object", "properties": {"a": leaf(r)}, "required": ["a"]},
                          {"properties": {"b": leaf(r), "c": {"type": "boolean"}}, "required": ["b"]}]}
    if kind < .5:
        low = r.randint(0, 50)
        return {"type": "integer", "allOf": [{"minimum": low}, {"maximum": low + r.randint(5, 500)}, {"minimum": low - 3}]}
    if kind < .7:
        return {"allOf": [{"type": "string", "pattern": r.choice([r"^[a-z]+$", r"\d", r"^x"])}, {"minLength": 2, "maxLength": 9}]}
    if kind < .85:
        return {"type": "object", "properties": {"v": leaf(r)}, "required": ["v"], "additionalProperties": False,
                "anyOf": [{"required": ["v"]}, {"properties": {"v": {"type": "null"}}}]}
    return {"enum": list(range(-5, 20)), "allOf": [{"multipleOf": r.choice([2, 3])}, {"minimum": r.randint(-5, 3)}]}


def recursive(r):
    value = leaf(r)
    kind = r.randint(0, 4)
    if kind == 0:
        return {"$ref": "#/$defs/node", "$defs": {"node": {
            "type": "object", "properties": {"value": value, "children": {"type": "array", "items": {"$ref": "#/$defs/node"},
                                                                           "maxItems": r.randint(1, 3)}},
            "required": ["value"], "additionalProperties": False}}}
    if kind == 1:
        return {"type": "object", "properties": {"head": value, "tail": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
                "required": ["head", "tail"], "additionalProperties": False}
    if kind == 2:
        return {"$ref": "#/definitions/expr", "definitions": {"expr": {"anyOf": [
            {"type": "integer", "minimum": 0, "maximum": 99},
            {"type": "array", "prefixItems": [{"enum": ["+", "-", "*"]}, {"$ref": "#/definitions/expr"},
                                               {"$ref": "#/definitions/expr"}], "minItems": 3, "maxItems": 3}]}}}
    if kind == 3:
        return {"$defs": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "additionalProperties": False},
                          "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "maxItems": 2}}, "$ref": "#/$defs/a"}
    return {"type": "object", "additionalProperties": {"anyOf": [value, {"$ref": "#"}]}, "maxProperties": 2}


def strict(r):
    """As OpenAI's strict mode wants it: everything required, nothing additional, unions with null for what is optional."""
    def one(depth):
        kind = r.random()
        if depth and kind < .2:
            return {"type": "array", "items": one(depth - 1)}
        if depth and kind < .4:
            return whole(depth - 1)
        if kind < .6:
            return {"type": r.choice(["string", "number", "integer", "boolean"]), **r.choice([{}, DESCRIBED])}
        if kind < .75:
            return {"type": [r.choice(["string", "integer"]), "null"]}
        if kind < .9:
            return {"type": "string", "enum": r.sample(["low", "medium", "high", "none", "n/a"], 3)}
        return {"anyOf": [{"type": "string", "format": r.choice(["date", "uuid", "email"])}, {"type": "null"}]}

    def whole(depth):
        names = r.sample(WORDS[:20], r.randint(1, 6))
        return {"type": "object", "properties": {name: one(depth) for name in names}, "required": names,
                "additionalProperties": False}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **whole(2)}


def pydantic(r):
    """As pydantic's model_json_schema() writes it."""
    models = r.sample(["Address", "Item", "Person", "Step", "Order"], r.randint(1, 3))

    def field(depth):
        kind = r.random()
        if depth and kind < .2:
            return {"$ref": "#/$defs/" + r.choice(models)}
        if depth and kind < .3:
            return {"allOf": [{"$ref": "#/$defs/" + r.choice(models)}], "description": "nested"}
        if depth and kind < .45:
            return {"items": {"$ref": "#/$defs/" + r.choice(models)}, "title": "Items", "type": "array"}
        if kind < .6:
            return {"anyOf": [{"type": r.choice(["string", "integer", "number"])}, {"type": "null"}], "default": None,
                    "title": "Optional"}
        if kind < .7:
            return {"exclusiveMinimum": 0, "title": "Price", "type": "number"}
        if kind < .8:
            return {"maxLength": 40, "minLength": 1, "title": "Name", "type": "string"}
        if kind < .9:
            return {"enum": ["a", "b"], "title": "Choice", "type": "string"}
        return {"additionalProperties": {"type": "integer"}, "title": "Counts", "type": "object"}

    def model(name, depth):
        names = r.sample(WORDS[:18], r.randint(1, 5))
        return {"properties": {each: field(depth) for each in names}, "required": [each for each in names if r.random() < .6],
                "title": name, "type": "object"}
    return {"$defs": {name: model(name, 0) for name in models}, **model("Answer", 1)}


def odd(r, i):
    """One schema for each of the corners that are easy to get wrong."""
    corners = [
        {}, True, {"type": "object"}, {"type": "array"}, {"type": "string"}, {"type": "number"}, {"type": ["object", "array"]},
        {"type": "array", "items": False}, {"type": "array", "maxItems": 0}, {"type": "object", "maxProperties": 0},
        {"type": "object", "additionalProperties": False}, {"type": "object", "required": ["a", "b"]},
        {"type": "object", "properties": {"a": False, "b": True}}, {"type": "string", "maxLength": 0},
        {"type": "string", "nullable": True, "maxLength": 3}, {"x-vendor": 1, "type": "boolean"},
        {"type": "number", "minimum": 0, "maximum": 0}, {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
        {"type": "number", "minimum": -0.001, "maximum": 0.001}, {"type": "integer", "minimum": 99, "maximum": 101},
        {"type": "integer", "exclusiveMinimum": -10, "exclusiveMaximum": -8}, {"type": "number", "multipleOf": 0.01, "minimum": 9.99},
        {"type": "integer", "maximum": 9007199254740993, "minimum": 9007199254740990}, {"type": "integer", "multipleOf": 1000},
        {"enum": [1, 2, 3], "type": "integer", "multipleOf": 2}, {"const": {"b": 1, "a": 2}}, {"enum": ["<|im_end|>", "</s>"]},
        {"type": "string", "pattern": "^<[|]im_end[|]>$"}, {"type": "string", "const": "\U0001F600"},
        {"type": "string", "minLength": 2, "maxLength": 2, "pattern": "^[\U0001F600-\U0001F64F]"},
        {"$ref": "#/$defs/a%20b", "$defs": {"a b": {"type": "integer", "minimum": 0, "maximum": 9}}},
        {"$ref": "#/$defs/x~1y", "$defs": {"x/y": {"$anchor": "here", "type": "boolean"}}},
        {"$ref": "#here", "$defs": {"x/y": {"$anchor": "here", "type": "boolean"}}},
        {"type": "object", "properties": {"a": {"type": "integer"}}, "patternProperties": {"^a": {"minimum": 0, "maximum": 5}},
         "required": ["a"], "additionalProperties": False},
        {"type": "object", "properties": {"a": True}, "propertyNames": {"enum": ["a"]}, "additionalProperties": False},
        {"type": "object", "minProperties": 1, "properties": {"a": {"type": "null"}, "b": {"type": "null"}}},
        {"type": "object", "minProperties": 2, "maxProperties": 2, "properties": {c: {"type": "boolean"} for c in "abcd"},
         "additionalProperties": False},
        {"type": "array", "prefixItems": [{"const": 1}, {"const": 2}], "items": {"const": 3}, "minItems": 1, "maxItems": 4},
        {"items": [{"const": 1}], "additionalItems": {"const": 2}, "type": "array", "maxItems": 3},
        {"anyOf": [{"minimum": 10, "type": "integer"}, {"maximum": -10, "type": "integer"}]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}, {"type": "null"}], "title": "exclusive by type"},
        {"type": "string", "format": "date-time", "maxLength": 20}, {"type": "string", "format": "email", "pattern": "^a"},
        {"allOf": [{"type": ["string", "integer"]}, {"type": ["integer", "null"]}]},
        {"type": "object", "properties": {"a": {"type": "string", "default": "x", "examples": ["y"], "deprecated": True}}},
        {"allOf": [{"additionalProperties": {"type": "integer"}, "type": "object"}, {"properties": {"n": {"minimum": 3}}}]},
        {"type": "object", "properties": {"\u007f": {"type": "integer"}, "\b": {"type": "null"}},
         "additionalProperties": {"type": "boolean"}},
        {"type": "array", "items": {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}}}},
        {"type": "array", "uniqueItems": False, "items": {"enum": [1, 2]}},
        {"type": "string", "pattern": "^[^\"\\\\]*$", "maxLength": 12},
    ]
    return corners[i]


def main():
    r = random.Random(20260101)
    kinds = [("odd", lambda i: odd(r, i), 50), ("number", lambda _: number(r), 60), ("string", lambda _: string(r), 60),
             ("constant", lambda _: constant(r), 20), ("array", lambda _: array(r, 2), 45), ("object", lambda _: obj(r, 2), 70),
             ("map", lambda _: dictionary(r, 2), 25), ("union", lambda _: union(r, 2), 40), ("all", lambda _: conjunction(r), 30),
             ("recursive", lambda _: recursive(r), 20), ("strict", lambda _: strict(r), 40), ("pydantic", lambda _: pydantic(r), 40)]
    for name, make, count in kinds:
        for i in range(count):
            print(json.dumps({"name": f"{name}-{i}", "schema": make(i)}, ensure_ascii=True, separators=(",", ":")))


if __name__ == "__main__":
    main()
