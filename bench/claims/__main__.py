#!/usr/bin/env python3
"""Measures what the sources claim, and writes a table of verdicts:

  python3 bench/claims --kvasir build/release/bin/kvasir --books FOLDER --out RESULTS [--model MODEL] [--only NAME ...] [--table FILE.md]

FOLDER has .txt files: each is a text, and results are paired by text. Runs that are in RESULTS are not run again. --list prints
the claims; --missing leaves out what has not been run instead of running it.
"""
import argparse
import pathlib
import sys

import article
import cascade
import lazy_pruning
import lethe
import synckv
from claim import Results

CLAIMS = [claim for part in (lazy_pruning, cascade, article, lethe, synckv) for claim in part.CLAIMS]
WORDS = {"agrees": "agrees", "disagrees": "**disagrees**", "open": "no verdict"}


def rows(results, claims, run):
    for claim in claims:
        found = {}
        for name, args in claim.runs.items():
            if run:
                found[name] = results.run(name, args(found) if callable(args) else args)
            else:
                found[name] = results.stored(name)
        if None not in found.values():
            yield f"| {claim.source} | {claim.says} | {claim.ours(found)} | {WORDS[claim.verdict(found)]} | {claim.reason} | `{claim.name}` |"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    here = pathlib.Path(__file__).resolve().parents[2]
    parser.add_argument("--kvasir", default=str(here / "build/release/bin/kvasir"))
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--mini", default=str(here / "models/kvasir-mini-16m-q8_0.gguf"))
    parser.add_argument("--books", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--table")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--missing", action="store_true")
    options = parser.parse_args()
    claims = [c for c in CLAIMS if not options.only or c.name in options.only or c.source in options.only]
    if options.list:
        for claim in claims:
            print(f"{claim.source}: {claim.name}: {claim.says}")
        return
    bin_folder = str(pathlib.Path(options.kvasir).parent)
    values = {"model": options.model, "mini": options.mini, "books": options.books, "bin": bin_folder, "out": options.out}
    results = Results(options.out, options.kvasir, values)
    lines = ["| source | claim | measured | verdict | why | name |", "|---|---|---|---|---|---|"]
    for line in rows(results, claims, not options.missing):
        print(line, flush=True)
        lines.append(line)
    if options.table:
        pathlib.Path(options.table).write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    sys.exit(main())
