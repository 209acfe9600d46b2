#!/usr/bin/env python3
"""What codecs cost in quality: codec_quality.py KVASIR MODEL TEXT... [--parts codecs,sides,...] [--windows N]

Runs `kvasir eval ppl --compare-full` with many codecs side by side over windows of the texts, and `kvasir eval needle`,
and prints tables in Markdown: bytes of a token, perplexity, its change against f16, mean and 99th percentile of the KL
divergence from the full f16 cache, and how often both find the same token likeliest. Each part is a run of its own:

  codecs    every codec for keys and values alike
  sides     one side encoded, the other in 16 bits
  rotate    a Walsh-Hadamard rotation of keys, of values, of both, of neither
  recent    the newest 0, 32 or 128 tokens in 16 bits
  policies  every codec under three policies
  needle    recall of a fact, by codec
  steps     policies that drop tokens one at a time, over one stream: how often tokens are encoded, and what it costs
"""

import argparse
import json
import subprocess
import sys

CODECS = ["q8", "q4", "q4o", "q3", "q2"]
POLICIES = ["streaming:sinks=4,window=1020", "h2o:budget=1024,recent=512", "snapkv:budget=512"]
STEPS = ["h2o:budget=256,recent=128", "tova:budget=256", "lethe:start=256"]


def eval_json(arguments, what, options):
    command = [arguments.kvasir, "eval", what, "-m", arguments.model, "--json", "-q", *options]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(" ".join(command) + " failed")
    return json.loads(done.stdout)


def token_bytes(arguments, codec):
    """Bytes of a token in sealed pages, all layers and heads."""
    command = [arguments.kvasir, "plan", "-m", arguments.model, "--kv-type", codec, "--json", "-q"]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout)["kv_bytes_per_token"]


def all_texts(runs):
    """The pooled rows where there are several texts."""
    pooled = [run for run in runs if run["file"] == "all"]
    return pooled or runs


def perplexity(arguments, codecs, policies=("full",), more=()):
    options = ["--compare-full", "--window", str(arguments.window), "--windows", str(arguments.windows), "--score", "all",
               *more]
    for text in arguments.texts:
        options += ["-f", text]
    for policy in policies:
        options += ["--kv", policy]
    for codec in codecs:
        options += ["--kv-type", codec]
    return all_texts(eval_json(arguments, "ppl", options)["runs"])


def table(header, rows):
    print("| " + " | ".join(header) + " |")
    print("|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


def quality(run, base):
    return [f"{run['ppl']:.3f}", f"{(run['ppl'] / base['ppl'] - 1) * 100:+.3f}%", f"{run['kld_mean']:.5f}",
            f"{run['kld_p99']:.4f}", f"{run['top1_agree'] * 100:.2f}%"]


QUALITY = ["perplexity", "against f16", "KL mean", "KL p99", "top-1"]


def by_codec(arguments, codecs):
    runs = perplexity(arguments, ["f16", *codecs])
    full = token_bytes(arguments, "f16")
    rows = []
    for codec, run in zip(["f16", *codecs], runs):
        size = token_bytes(arguments, codec)
        rows.append([f"`{codec}`", size, f"{full / size:.2f}x", *quality(run, runs[0])])
    print(f"{runs[0]['tokens']} tokens, windows of {arguments.window}; perplexity of f16 with a standard error of "
          f"{runs[0]['ppl_error']:.2f}\n")
    table(["codec", "bytes a token", "smaller", *QUALITY], rows)


def by_policy(arguments):
    codecs = ["f16", *CODECS]
    runs = perplexity(arguments, codecs, POLICIES)
    rows = []
    for at, run in enumerate(runs):
        base = runs[at // len(codecs) * len(codecs)]
        rows.append([f"`{run['policy']}`", f"`{run['codec']}`", *quality(run, base), f"{run['encodings_mean']:.2f}",
                     run["encodings_max"]])
    table(["policy", "codec", *QUALITY, "encodings, mean", "most"], rows)


def by_needle(arguments):
    codecs = ["f16", *CODECS]
    options = ["-f", arguments.texts[0], "--lengths", "1024,4096", "--depths", "0,0.5,1", "--trials", str(arguments.trials)]
    for codec in codecs:
        options += ["--kv-type", codec]
    rows = []
    for codec, run in zip(codecs, eval_json(arguments, "needle", options)["runs"]):
        cells = {}
        for cell in run["cells"]:
            cells.setdefault(cell["length"], []).append(cell["exact"])
        rows.append([f"`{codec}`", *(f"{sum(of) / len(of) * 100:.1f}%" for of in cells.values()), f"{run['logprob']:.4f}"])
    table(["codec", "exact at 1,024 tokens", "at 4,096", "nats a token of the answer"], rows)


def by_steps(arguments):
    codecs = ["f16", "q4"]
    options = ["--compare-full", "--tokens", str(arguments.steps), "--chunk", "1", "-f", arguments.texts[0]]
    for policy in STEPS:
        options += ["--kv", policy]
    for codec in codecs:
        options += ["--kv-type", codec]
    runs = eval_json(arguments, "ppl", options)["runs"]
    rows = []
    for at, run in enumerate(runs):
        base = runs[at // len(codecs) * len(codecs)]
        rows.append([f"`{run['policy']}`", f"`{run['codec']}`", *quality(run, base), f"{run['encodings_mean']:.2f}",
                     run["encodings_max"], f"{run['cache_op_ms']:.3f}", f"{run['tpot_ms']:.2f}"])
    table(["policy", "codec", *QUALITY, "encodings, mean", "most", "cache ms", "ms a token"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--parts", default="codecs,sides,rotate,recent,policies,needle,steps")
    parser.add_argument("--window", type=int, default=8192)
    parser.add_argument("--windows", type=int, default=2)
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--steps", type=int, default=10000)
    arguments = parser.parse_args()
    sides = [f"{side}={codec},{other}=f16" for codec in CODECS for side, other in ("kv", "vk")]
    sides = [name if name.startswith("k=") else f"k=f16,v={name[2:name.index(',')]}" for name in sides]
    parts = {
        "codecs": lambda: by_codec(arguments, CODECS),
        "sides": lambda: by_codec(arguments, sides),
        "rotate": lambda: by_codec(arguments, [f"{codec},rotate={how}" for codec in CODECS for how in ("off", "k", "v", "kv")]),
        "recent": lambda: by_codec(arguments, [f"{codec},recent={n}" for codec in CODECS for n in (0, 32, 128)]),
        "policies": lambda: by_policy(arguments),
        "needle": lambda: by_needle(arguments),
        "steps": lambda: by_steps(arguments),
    }
    for name in arguments.parts.split(","):
        if name not in parts:
            sys.exit(f"there is no part '{name}'; choose some of {', '.join(parts)}")
        print(f"### {name}\n")
        parts[name]()


if __name__ == "__main__":
    main()
