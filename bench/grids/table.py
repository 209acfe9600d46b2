#!/usr/bin/env python3
"""Prints the cells of `kvasir eval matrix` as tables in Markdown, one for each budget:

  table.py RESULTS [--against streaming] [--codecs f16,q8,q4]

RESULTS is the grid's folder of results. `kept` is the mean number of tokens that a pass saw. KL is the mean divergence from the
full f16 cache in nats per token; its difference from the policy --against, at the same budget, is paired by window, as is its
standard error.
"""
import argparse
import json
import math
import pathlib
import re
import statistics
import sys


def cells_of(folder):
    """Returns {(task, policy, codec): cell}. Ends the program where there are none, or two for one key: of two grids or models."""
    cells = {}
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        cell = json.loads(path.read_text())
        if not cell.get("schema", "").startswith("kvasir-eval/"):
            continue
        key = cell["task"], cell["policy"], cell["codec"]
        if key in cells:
            sys.exit(f"table.py: {folder} has several cells of {', '.join(key)}, of other windows, texts or models; "
                     "name a folder of one grid")
        cells[key] = cell
    if not cells:
        sys.exit(f"table.py: {folder} has no cells of 'kvasir eval matrix'")
    return cells


def budget_of(policy):
    found = re.search(r"(?:budget|size|cap|max)=(\d+)", policy)
    return int(found.group(1)) if found else 0


def paired(cell, other):
    pairs = [a - b for a, b in zip(cell["tokens"]["kld"], other["tokens"]["kld"], strict=True)]
    scored = cell["window"] - 1 - (cell["prefill"] or cell["window"] // 2)
    windows = [statistics.fmean(pairs[i:i + scored]) for i in range(0, len(pairs), scored)]
    return statistics.fmean(windows), statistics.stdev(windows) / math.sqrt(len(windows)) if len(windows) > 1 else math.nan


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results")
    parser.add_argument("--against", default="streaming")
    parser.add_argument("--codecs", default="f16,q8,q4")
    options = parser.parse_args()
    cells = cells_of(options.results)
    codecs = options.codecs.split(",")
    if lacking := sorted(set(codecs) - {codec for _, _, codec in cells}):
        sys.exit(f"table.py: there are no cells of {', '.join(lacking)}; give --codecs")
    policies = list(dict.fromkeys(policy for _, policy, _ in cells))
    for budget in sorted({budget_of(policy) for policy in policies} - {0}):
        print(f"\n| budget {budget} | kept | KL, {', '.join(codecs)} | less `{options.against}`'s, {codecs[0]} | needles %, {', '.join(codecs)} | "
              f"KV MiB, {', '.join(codecs)} |\n|---|---|---|---|---|---|")
        rows = []
        for policy in policies:
            if budget_of(policy) not in (0, budget):
                continue
            scored = [cells.get(("perplexity", policy, codec)) for codec in codecs]
            needles = [cells.get(("needle", policy, codec)) for codec in codecs]
            if None in scored:
                continue
            klds = [cell["summary"]["metrics"]["kld"]["mean"] for cell in scored]
            other = next((cells["perplexity", p, codecs[0]] for p in policies if p.startswith(options.against) and budget_of(p) == budget), None)
            less = "" if other is None or other is scored[0] else "{:+.4f} ± {:.4f}".format(*paired(scored[0], other))
            found = [f"{100 * next(iter(cell['summary']['metrics'].values()))['mean']:.0f}" if cell else "" for cell in needles]
            bytes_ = [f"{cell['summary']['kv_bytes_max'] / 2**20:.1f}" for cell in scored]
            rows.append((klds[0], f"| `{policy}` | {scored[0]['summary']['kept_mean']:.0f} | {', '.join(f'{kld:.4f}' for kld in klds)} | {less} | {', '.join(found)} | {', '.join(bytes_)} |"))
        for _, row in sorted(rows):
            print(row)


if __name__ == "__main__":
    main()
