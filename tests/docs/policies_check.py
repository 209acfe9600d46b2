"""Compares the options in docs/policies with `kvasir policies`: each policy's page names every option, and a row about
one has its default and the numbers of its range.

Usage: policies_check.py KVASIR SOURCE_DIR
"""

import json
import pathlib
import re
import subprocess
import sys

NONE = {"", "none", "-"}


def section(text, heading):
    """Returns what stands under a heading of the second level."""
    begin = text.find(f"\n## {heading}\n")
    end = text.find("\n## ", begin + 1)
    return "" if begin < 0 else text[begin : end if end >= 0 else len(text)]


def rows(text):
    """Yields the names of options, and the other cells, of each row of a table of options."""
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) >= 4:
            yield re.findall(r"`([^`]+)`", cells[0]), cells[1:]


def numbers(text):
    return re.findall(r"[\d.]+(?:\^\d+)?%?", text)


def main():
    kvasir, folder = sys.argv[1], pathlib.Path(sys.argv[2]) / "docs/policies"
    listed = json.loads(subprocess.run([kvasir, "policies", "--json"], check=True, capture_output=True).stdout)
    shared = {names[0]: cells for names, cells in rows(section((folder / "README.md").read_text(), "Shared options"))}
    options = wrong = 0
    for policy in listed["policies"]:
        name = policy["name"]
        text = section((folder / f"{name}.md").read_text(), "Options")
        own = {}
        for names, cells in rows(text):
            defaults = [default.strip(" `") for default in cells[0].split(",")]
            for i, option in enumerate(names):
                own[option] = (defaults[i] if len(defaults) == len(names) else defaults[0], cells[1])
        for option in policy["options"]:
            options += 1
            said = own.get(option["name"])
            if said is None and name == "pyramidkv" and "those of `snapkv`" in text:
                continue
            if said is None and option["name"] in shared and f"`{option['name']}`" in text:
                default, values, policies = shared[option["name"]][:3]
                said = (default.strip("`"), values)
                if f"`{name}`" not in policies and "all" not in policies:
                    said = None
            if said is None:
                wrong += 1
                print(f"{name}.md does not describe {option['name']}")
                continue
            same = said[0] == option["default"] or {said[0], option["default"]} <= NONE
            if not same or numbers(said[1]) != numbers(option["range"]):
                wrong += 1
                print(f"{name}.md: {option['name']} is {option['default']}, {option['range']}, not {said[0]}, {said[1]}")
    print(f"{options} options, {wrong} wrong")
    if wrong or options < 50:
        sys.exit(1)


if __name__ == "__main__":
    main()
