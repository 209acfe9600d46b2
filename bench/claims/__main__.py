#!/usr/bin/env python3
"""Measures what the sources claim, and writes a table of verdicts:

  python3 bench/claims --books FOLDER --out RESULTS [--kvasir PROGRAM] [--model MODEL] [--only NAME ...] [--table FILE.md]

FOLDER has .txt files: each is a text, and results are paired by text. --mmlu names the folder of MMLU's `test` and `dev`; claims that
need it are left out without it. Runs that are in RESULTS with the same arguments and inputs, of the same build of Kvasir and with
the same threads, are not run again; --any-build takes those of other builds and threads too, and names them. --list prints the
claims; --missing leaves out what has not been run instead of running it. --update FILE.md replaces the rows of a table by those that
have been run, adds those that it lacks, and leaves the others as they are.
"""
import argparse
import os
import pathlib
import re
import sys

import article
import cascade
import lazy_pruning
import lethe
import synckv
from claim import Results

CLAIMS = [claim for part in (lazy_pruning, cascade, article, lethe, synckv) for claim in part.CLAIMS]
WORDS = {"agrees": "agrees", "disagrees": "**disagrees**", "mixed": "mixed", "open": "no verdict"}


def outputs(results, claim, run):
    """Returns the outputs of a claim's runs by name, or None where one is missing."""
    found = {}
    for name, args in claim.runs_of(results.values).items():
        args = args(found) if callable(args) else args
        found[name] = results.run(name, args) if run else results.stored(name, args)
        if found[name] is None:
            return None
    return found


def rows(results, claims, run):
    """Yields each claim that has a verdict with its line of the table."""
    for claim in claims:
        found = outputs(results, claim, run)
        if found is not None:
            yield claim, f"| `{claim.name}` | {claim.says} | {claim.ours(found)} | {WORDS[claim.verdict(found)]} | {claim.why(found)} |"


def update(text, lines):
    """Returns a page with the rows of {claim's name: line} in place of its own, new ones in the order of CLAIMS."""
    rows = {name: line for name, line in re.findall(r"^\| `([^`]+)` (.*)$", text, re.M)}
    rows = {name: f"| `{name}` {line}" for name, line in rows.items()} | lines
    for source in dict.fromkeys(claim.source for claim in CLAIMS):
        table = "\n".join(rows[claim.name] for claim in CLAIMS if claim.source == source and claim.name in rows)
        text, found = re.subn(rf"(## {re.escape(source)}\n\n[^\n]+\n\|---[^\n]+\n)(?:\|[^\n]*\n)*", lambda m: f"{m[1]}{table}\n", text)
        if found != 1 and table:
            sys.exit(f"claims: the page has no table below '## {source}'")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--kvasir", default=str(here / "build/release/bin/kvasir"), help="default: that of the release build")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    parser.add_argument("--model", default=str(cache / "kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf"), help="default: the one that scripts/run fetches")
    parser.add_argument("--mini", default=str(here / "models/kvasir-mini-16m-q8_0.gguf"), help="default: the bundled model")
    parser.add_argument("--books", help="folder of texts; some claims read its hard-times.txt alone")
    parser.add_argument("--mmlu", help="folder with MMLU's folders test and dev")
    parser.add_argument("--out", help="folder for the outputs of runs")
    parser.add_argument("--only", nargs="+", default=[], help="names of claims or of sources")
    parser.add_argument("--table", help="file for the table")
    parser.add_argument("--update", help="page whose rows are replaced")
    parser.add_argument("--list", action="store_true", help="print the claims")
    parser.add_argument("--missing", action="store_true", help="run nothing: leave out what has not been run")
    parser.add_argument("--any-build", action="store_true", help="take outputs of other builds and threads too")
    options = parser.parse_args()
    known = {claim.name for claim in CLAIMS} | {claim.source for claim in CLAIMS}
    if unknown := sorted(set(options.only) - known):
        parser.error(f"there is no claim {', '.join(unknown)}; --list prints them")
    claims = [c for c in CLAIMS if not options.only or c.name in options.only or c.source in options.only]
    if options.list:
        for claim in claims:
            print(f"{claim.source}: {claim.name}: {claim.says}")
        return
    if not options.books or not options.out:
        parser.error("--books and --out are required")
    if any("hard-times.txt" in str(claim.runs) for claim in claims) and not (pathlib.Path(options.books) / "hard-times.txt").is_file():
        parser.error(f"{options.books} has no hard-times.txt, which some claims read alone")
    values = {"model": options.model, "mini": options.mini, "books": options.books, "mmlu": options.mmlu, "out": options.out,
              "bin": str(pathlib.Path(options.kvasir).parent), "bench": str(here / "bench")}
    claims = [claim for claim in claims if all(values[need] for need in claim.needs)]
    lines, source, named = [], None, {}
    for claim, line in rows(Results(options.out, options.kvasir, values, options.any_build), claims, not options.missing):
        print(line, flush=True)
        if claim.source != source:
            source = claim.source
            lines += ["", f"## {source}", "", "| claim | what it says | measured | verdict | why |", "|---|---|---|---|---|"]
        lines.append(line)
        named[claim.name] = line
    if (options.table or options.update) and not named:
        sys.exit("claims: no claim has been run; nothing is written")
    if options.table:
        pathlib.Path(options.table).write_text("\n".join(lines[1:]) + "\n")
    if options.update:
        page = pathlib.Path(options.update)
        page.write_text(update(page.read_text(), named))


if __name__ == "__main__":
    sys.exit(main())
