#!/usr/bin/env python3
"""Prints the cells of `kvasir eval matrix` as tables in Markdown, one for each budget:

  table.py RESULTS [--against streaming] [--codecs f16,q8,q4]

RESULTS is the grid's folder of results. `kept` is the mean number of tokens that a pass saw. KL is the mean divergence from the
full f16 cache in nats per token; its difference from the policy --against, at the same budget, is paired by window, as is its
standard error. A star says that it is beyond chance: below 5% by Student's t, with Holm's correction for all differences of the
table. The other tasks have a column each, with their first metric in percent.
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
        if cell["summary"].get("failed"):
            sys.exit(f"table.py: {path} has questions without an answer; they would count as wrong")
        cells[key] = cell
    if not cells:
        sys.exit(f"table.py: {folder} has no cells of 'kvasir eval matrix'")
    return cells


def budget_of(policy):
    found = re.search(r"(?:budget|size|cap|max)=(\d+)", policy)
    return int(found.group(1)) if found else 0


def chance_of(pair, steps=20000):
    """Returns the two-sided p-value of a mean difference, its standard error and its degrees of freedom, by Student's t: twice the
    integral of the density's tail, by Simpson's rule over the angle whose tangent is t / sqrt(df)."""
    difference, error, freedom = pair
    if not error > 0:
        return 0.0 if error == 0 and difference != 0 else 1.0
    begin = math.atan(abs(difference / error) / math.sqrt(freedom))
    step = (math.pi / 2 - begin) / steps
    heights = [math.cos(begin + i * step) ** (freedom - 1) for i in range(steps + 1)]
    tail = step / 3 * (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1])
    return 2 * tail * math.gamma((freedom + 1) / 2) / (math.sqrt(math.pi) * math.gamma(freedom / 2))


def beyond_chance(chances):
    """Returns which of some p-values are significant at 5% after Holm's correction for their number."""
    order = sorted(range(len(chances)), key=chances.__getitem__)
    found = set()
    for place, index in enumerate(order):
        if chances[index] > 0.05 / (len(chances) - place):
            break
        found.add(index)
    return found


def paired(cell, other):
    pairs = [a - b for a, b in zip(cell["tokens"]["kld"], other["tokens"]["kld"], strict=True)]
    scored = cell["window"] - 1 - (cell["prefill"] or cell["window"] // 2)
    windows = [statistics.fmean(pairs[i:i + scored]) for i in range(0, len(pairs), scored)]
    error = statistics.stdev(windows) / math.sqrt(len(windows)) if len(windows) > 1 else math.nan
    return statistics.fmean(windows), error, len(windows) - 1


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
    tasks = [task for task in dict.fromkeys(task for task, _, _ in cells) if task != "perplexity"]
    for budget in sorted({budget_of(policy) for policy in policies} - {0}):
        columns = [f"{task} %, {', '.join(codecs)}" for task in tasks]
        print(f"\n| budget {budget} | kept | KL, {', '.join(codecs)} | less `{options.against}`'s, {codecs[0]} | {' | '.join(columns)} | "
              f"KV MiB, {', '.join(codecs)} |\n|---|---|---|---|{'---|' * len(tasks)}---|")
        rows = []
        for policy in policies:
            scored = [cells.get(("perplexity", policy, codec)) for codec in codecs]
            if budget_of(policy) in (0, budget) and None not in scored:
                rows.append((policy, scored))
        rows.sort(key=lambda row: row[1][0]["summary"]["metrics"]["kld"]["mean"])
        other = next((scored[0] for policy, scored in rows if policy.startswith(options.against)), None)
        less = {policy: paired(scored[0], other) for policy, scored in rows if other is not None and scored[0] is not other}
        compared = list(less)
        starred = {compared[index] for index in beyond_chance([chance_of(less[policy]) for policy in compared])}
        for policy, scored in rows:
            klds = ", ".join(f"{cell['summary']['metrics']['kld']['mean']:.4f}" for cell in scored)
            shown = "{:+.4f} ± {:.4f}".format(*less[policy]) + ("*" if policy in starred else "") if policy in less else ""
            found = [", ".join(f"{100 * next(iter(cell['summary']['metrics'].values()))['mean']:.0f}" if cell else ""
                               for cell in (cells.get((task, policy, codec)) for codec in codecs)) for task in tasks]
            held = ", ".join(f"{cell['summary']['kv_bytes_max'] / 2**20:.1f}" for cell in scored)
            print(f"| `{policy}` | {scored[0]['summary']['kept_mean']:.0f} | {klds} | {shown} | {' | '.join(found)} | {held} |")


if __name__ == "__main__":
    main()
