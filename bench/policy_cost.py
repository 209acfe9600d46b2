#!/usr/bin/env python3
"""Measures what each policy costs per generated token, and prints a table in Markdown:

  policy_cost.py KVASIR MODEL TEXT.txt [--depth 4096] [--tokens 256] [--budget 512] [--only NAME ...]

Each policy reads a prompt of `depth` tokens of the text, then `tokens` more, one at a time: the mean time of such a token, the time
of it that the cache's upkeep took (observing, scoring, pruning), and the share. Policies without an option `budget` get its
number as their size. The machine must be quiet.
"""
import argparse
import json
import subprocess

SIZES = {"window": "size={0}", "streaming": "cap={0}", "cascade": "size={0}", "lethe": "max={0}", "synckv": "mem=50%", "full": ""}
LEFT_OUT = ("recompute",)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--depth", type=int, default=4096)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--budget", type=int, default=512)
    parser.add_argument("--only", nargs="+", default=[])
    options = parser.parse_args()
    listed = json.loads(subprocess.run([options.kvasir, "policies", "--json"], capture_output=True, text=True, check=True).stdout)
    names = [policy["name"] for policy in listed["policies"] if policy["name"] not in LEFT_OUT]
    print("| policy | token, ms | upkeep, ms | share | kept |\n|---|---|---|---|---|")
    for name in names:
        if options.only and name not in options.only:
            continue
        size = SIZES.get(name, "budget={0}").format(options.budget)
        spec = f"{name}:{size}" if size else name
        command = [options.kvasir, "eval", "ppl", "-m", options.model, "-f", options.text, "--tokens", str(options.depth + options.tokens),
                   "--prefill", str(options.depth), "--json", "-q", "--kv", spec]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            print(f"| `{spec}` | {done.stderr.strip().splitlines()[-1]} | | | |")
            continue
        run = json.loads(done.stdout)["runs"][0]
        token = run["forward_ms"] + run["cache_op_ms"]
        share = run["cache_op_ms"] / token
        print(f"| `{spec}` | {token:.2f} | {run['cache_op_ms']:.3f} | {100 * share:.1f}% | {run['kept_mean']:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
