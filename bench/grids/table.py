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
import os
import pathlib
import re
import statistics
import sys


def differing(cell, other):
    """Returns the fields in which two cells differ, but for what they measured."""
    measured = ("summary", "tokens", "command", "path", "answers_of_earlier_runs")
    flat = [{**one["subject"], **{name: value for name, value in one.items() if name not in (*measured, "subject")}} for one in (cell, other)]
    return ", ".join(name for name in flat[0] if flat[0][name] != flat[1].get(name) and name != "threads") or "nothing"


def cells_of(folder, build=None):
    """Returns {(task, policy, codec): cell}. A task is its name and, where there are several of that name, what it was made of. Ends the
    program where there are no cells, or two for one key: of two builds or models."""
    found = []
    for path in sorted(pathlib.Path(folder).glob("*.json")):
        try:
            cell = json.loads(path.read_text())
        except ValueError as error:
            sys.exit(f"table.py: {path} is no JSON: {error}; remove it, and the grid's command makes it again")
        if not isinstance(cell, dict) or not cell.get("schema", "").startswith("kvasir-eval/"):
            continue
        if cell["summary"].get("failed"):
            sys.exit(f"table.py: {path} has questions without an answer; they would count as wrong")
        if build is None or cell["subject"].get("build", "").startswith(build):
            found.append((path, cell))
    made = {}
    for _, cell in found:
        made.setdefault(cell["task"], set()).add(cell["data"])
    cells = {}
    for path, cell in found:
        several = len(made[cell["task"]]) > 1
        key = f"{cell['task']} ({cell['data']})" if several else cell["task"], cell["policy"], cell["codec"]
        if key in cells:
            sys.exit(f"table.py: {path.name} and {cells[key]['path']} are both of {', '.join(key)}, but differ in "
                     f"{differing(cell, cells[key])}; give --build, or name a folder of one grid")
        cell["path"] = path.name
        cells[key] = cell
    if not cells:
        sys.exit(f"table.py: {folder} has no cells of 'kvasir eval matrix'")
    return cells


def budget_of(policy):
    """Returns how many tokens a policy keeps by its options; 0 where they do not say."""
    sizes = {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", policy)}
    if "window" in sizes and policy.startswith("streaming"):
        return sizes["window"] + sizes.get("sinks", 4)
    return next((sizes[name] for name in ("budget", "size", "cap", "max") if name in sizes), 0)


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
    return 2 * tail * math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)


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
    parser.add_argument("--codecs", help="default: all that are there")
    parser.add_argument("--build", help="of several builds in one folder, the one whose digest begins so")
    options = parser.parse_args()
    cells = cells_of(options.results, options.build)
    there = list(dict.fromkeys(codec for _, _, codec in cells))
    codecs = options.codecs.split(",") if options.codecs else there
    if lacking := sorted(set(codecs) - set(there)):
        sys.exit(f"table.py: there are no cells of {', '.join(lacking)}; there are {', '.join(there)}")
    policies = list(dict.fromkeys(policy for _, policy, _ in cells))
    if not any(policy.startswith(options.against) for policy in policies):
        print(f"table.py: no policy begins with '{options.against}': nothing is compared", file=sys.stderr)
    names = list(dict.fromkeys(task for task, _, _ in cells))
    texts = [name for name in names if name.startswith("perplexity")]
    for budget in sorted({budget_of(policy) for policy in policies} - {0}) or [0]:
        for text in texts or [None]:
            print_table(cells, [policy for policy in policies if budget_of(policy) in (0, budget)], budget, text,
                        [name for name in names if name not in texts], codecs, options.against)


def print_table(cells, policies, budget, text, tasks, codecs, against):
    columns = ["kept", f"KL, {', '.join(codecs)}", f"less `{against}`'s, {codecs[0]}"] if text else []
    columns += [f"{task} %, {', '.join(codecs)}" for task in tasks] + [f"KV MiB, {', '.join(codecs)}"]
    print(f"\n| budget {budget} | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    rows = []
    for policy in policies:
        of_tasks = {name: [cells.get((name, policy, codec)) for codec in codecs] for name in [*([text] if text else []), *tasks]}
        if text is None or None not in of_tasks[text]:
            rows.append((policy, of_tasks))
    less, starred = {}, set()
    if text:
        rows.sort(key=lambda row: row[1][text][0]["summary"]["metrics"]["kld"]["mean"])
        other = next((of_tasks[text][0] for policy, of_tasks in rows if policy.startswith(against)), None)
        less = {policy: paired(of_tasks[text][0], other) for policy, of_tasks in rows if other is not None and of_tasks[text][0] is not other}
        compared = list(less)
        starred = {compared[index] for index in beyond_chance([chance_of(less[policy]) for policy in compared])}
    for policy, of_tasks in rows:
        shown = []
        if text:
            shown = [f"{of_tasks[text][0]['summary']['kept_mean']:.0f}",
                     ", ".join(f"{cell['summary']['metrics']['kld']['mean']:.4f}" for cell in of_tasks[text]),
                     "{:+.4f} ± {:.4f}".format(*less[policy]) + ("*" if policy in starred else "") if policy in less else ""]
        shown += [", ".join(f"{100 * next(iter(cell['summary']['metrics'].values()))['mean']:.0f}" if cell else "-" for cell in of_tasks[task])
                  for task in tasks]
        held = next(iter(of_tasks.values()))
        shown.append(", ".join(f"{cell['summary']['kv_bytes_max'] / 2**20:.1f}" if cell else "-" for cell in held))
        print(f"| `{policy}` | {' | '.join(shown)} |")


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # who reads it has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
