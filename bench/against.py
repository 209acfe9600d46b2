#!/usr/bin/env python3
"""Reading a prompt and decoding, of one GGUF file, by Kvasir and by llama.cpp in turn:

  against.py MODEL --kvasir build/release/bin/kvasir --llama-bench PATH [--prefill 512] [--decode 32] [--depths 0,4096] [--rounds 3]

Prefill is measured behind an empty cache, decoding behind each depth. In a round each program runs once for every depth,
alone, and measures --repeat times; the better of llama.cpp's two kinds of attention (-fa 0, -fa 1) in the first round is
kept for the others. Prints a table of medians over all rounds with the least and the most, their ratio, and each program's
peak of resident memory, mapped weights included; with --json one object. -- OPTIONS go to `kvasir bench`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile


def run(command):
    """Returns what the command writes, and its peak of resident memory in bytes."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(command, stdout=output, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            errors.seek(0)
            raise SystemExit(f"{' '.join(command)}: exit code {process.returncode}\n{errors.read().decode()[-1000:]}")
        output.seek(0)
        return json.load(output), usage.ru_maxrss * 1024


def kvasir(options, depth, prefill):
    command = [options.kvasir, "bench", "-m", options.model, "-t", str(options.threads), "--json", "-q", "--repeat", str(options.repeat),
               "--prefill", str(prefill), "--decode", str(options.decode), "--depth", str(depth), *options.kvasir_options]
    result, memory = run(command)
    speeds = {figure["test"]: [figure["lowest"], figure["tokens_per_s"], figure["highest"]] for figure in result["figures"]}
    return speeds, memory, result["read_gigabytes_per_s"]


def llama(options, depth, prefill, attention):
    result, memory = run([options.llama_bench, "-m", options.model, "-t", str(options.threads), "-r", str(options.repeat), "-o", "json",
                          "-p", str(prefill), "-n", str(options.decode), "-d", str(depth), "-fa", str(attention)])
    speeds = {}
    for one in result:
        samples = sorted(one["samples_ts"])
        speeds["prefill" if one["n_prompt"] else "decode"] = [samples[0], statistics.median(samples), samples[-1]]
    return speeds, memory


def merged(runs):
    """Least, median of medians, most."""
    return [min(run[0] for run in runs), statistics.median(run[1] for run in runs), max(run[2] for run in runs)]


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvasir", required=True)
    parser.add_argument("--llama-bench", required=True)
    parser.add_argument("--threads", "-t", type=int, default=os.cpu_count())
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--depths", default="0,4096")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(sys.argv[1:split])
    options.kvasir_options = sys.argv[split + 1:]
    ours, theirs, memory, bandwidths = {}, {}, {"kvasir": 0, "llama.cpp": 0}, []
    for depth in (int(depth) for depth in options.depths.split(",")):
        prefill = options.prefill if depth == 0 else 0
        kept = None  # llama.cpp's kind of attention
        for _ in range(options.rounds):
            speeds, bytes_, bandwidth = kvasir(options, depth, prefill)
            bandwidths.append(bandwidth)
            memory["kvasir"] = max(memory["kvasir"], bytes_)
            for test, figures in speeds.items():
                ours.setdefault((test, depth), []).append(figures)
            tried = {}
            for attention in (0, 1) if kept is None else (kept,):
                tried[attention], bytes_ = llama(options, depth, prefill, attention)
                memory["llama.cpp"] = max(memory["llama.cpp"], bytes_)
            kept = max(tried, key=lambda attention: tried[attention]["decode"][1])
            for test in speeds:  # the better one of each test
                figures = max((one[test] for one in tried.values()), key=lambda one: one[1])
                theirs.setdefault((test, depth), []).append(figures)
    rows = []
    for (test, depth), runs in ours.items():
        mine, other = merged(runs), merged(theirs[test, depth])
        rows.append({"test": test, "depth": depth, "kvasir": mine, "llama.cpp": other, "ratio": mine[1] / other[1]})
    if options.json:
        print(json.dumps({"model": options.model, "threads": options.threads, "rows": rows, "memory": memory,
                          "read_gigabytes_per_s": bandwidths}))
        return
    print("| work | Kvasir | llama.cpp | ratio |\n|---|---|---|---|")
    for row in rows:
        work = f"prefill {options.prefill}" if row["test"] == "prefill" else f"decode, depth {row['depth']:,}"
        mine, other = ([f"{figure:.3g}" for figure in row[name]] for name in ("kvasir", "llama.cpp"))
        print(f"| {work} | {mine[1]} ({mine[0]} to {mine[2]}) | {other[1]} ({other[0]} to {other[2]}) | {row['ratio']:.2f} |")
    print(f"\npeak memory: Kvasir {memory['kvasir'] / 2**30:.2f} GiB, llama.cpp {memory['llama.cpp'] / 2**30:.2f} GiB;"
          f" memory reads at {min(bandwidths):.1f} to {max(bandwidths):.1f} GB/s")


if __name__ == "__main__":
    main()
