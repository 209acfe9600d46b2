#!/usr/bin/env python3
"""What synckv reads less costs: synckv.py KVASIR MODEL TEXT... [--tokens N] [--prefill P] [--trials T] [--lengths A,B]

Profiles the heads of the model on the first and on the second half of the texts, and says how far the two agree. Then
prints, as tables: perplexity and distance from `full` of each text's tokens behind a prompt of P, for the variants of
synckv; and the recall of a hidden number (`kvasir eval needle`) beside other policies at equal memory.
"""

import argparse
import json
import subprocess
import tempfile

SHARES = (30, 50)


def kvasir(program, *arguments):
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def files(texts):
    return [part for text in texts for part in ("-f", text)]


def variants(profile):
    """The ablations, at half of the keys and values read, and at 30%."""
    base = f"profile={profile}"
    yield "synckv, 50%", f"synckv:mem=50%,{base}"
    for stride in (1, 10):
        yield f"stride={stride}" + (" (no suspension)" if stride == 1 else ""), f"synckv:mem=50%,stride={stride},{base}"
    for static in (0, 0.25, 0.75, 1):
        yield f"static={static}" + (" (no anticipation)" if static == 1 else ""), f"synckv:mem=50%,static={static},{base}"
    yield "2 representatives, 60%", f"synckv:mem=60%,reps=2,{base}"
    yield "1 representative, 60%", f"synckv:mem=60%,reps=1,{base}"
    yield "clusters of the prompt", "synckv:mem=50%"
    yield "synckv, 30%", f"synckv:mem=30%,{base}"


def perplexity(options, profile):
    named = list(variants(profile))
    sums = {spec: [0.0, 0.0, 0.0, 0] for _, spec in named}
    full = [0.0, 0]
    for text in options.texts:
        arguments = ["eval", "ppl", "-t", "1", "-m", options.model, "-f", text, "--tokens", str(options.tokens), "--prefill",
                     str(options.prefill), "--skip", str(options.prefill), "--compare-full", "--kv", "full"]
        for _, spec in named:
            arguments += ["--kv", spec]
        answer = kvasir(options.kvasir, *arguments)
        runs = answer["runs"] if "runs" in answer else [answer]
        full[0] += runs[0]["nll"] * runs[0]["tokens"]
        full[1] += runs[0]["tokens"]
        for (_, spec), run in zip(named, runs[1:]):
            own = sums[spec]
            own[0] += run["nll"] * run["tokens"]
            own[1] += run["kld_mean"] * run["tokens"]
            own[2] += run["top1_agree"] * run["tokens"]
            own[3] += run["tokens"]
    base = full[0] / full[1]
    print(f"\n{full[1]} tokens behind prompts of {options.prefill}, {len(options.texts)} texts\n")
    print("| variant | ppl against `full` | KL from full | top-1 as full |\n|---|---|---|---|")
    for name, spec in named:
        nll, kld, top, tokens = sums[spec]
        change = 100 * (2.718281828459045 ** (nll / tokens - base) - 1)
        print(f"| {name} | {change:+.2f}% | {kld / tokens:.4f} | {100 * top / tokens:.1f}% |")


def needle(options, profile):
    for length in options.lengths.split(","):
        named = ["full"]
        for share in SHARES:
            named += [f"synckv:mem={share}%,profile={profile}"]
            named += [f"{policy}:budget={share}%" for policy in ("snapkv", "cake")]
            named += [f"h2o:budget={share}%,recent=64", f"streaming:cap={int(length) * share // 100}"]
        print(f"\nRecall at {length} tokens, {options.trials} numbers at each of the depths 0.1, 0.5, 0.9\n")
        print("| policy | found whole |\n|---|---|")
        for spec in named:
            answer = kvasir(options.kvasir, "eval", "needle", "-t", "1", "-m", options.model, "-f", options.texts[0], "--lengths", length,
                            "--depths", "0.1,0.5,0.9", "--trials", str(options.trials), "--kv", spec)
            runs = answer["runs"] if "runs" in answer else [answer]
            cells = [cell for run in runs for cell in run["cells"]]
            found = sum(cell["exact"] for cell in cells) / len(cells)
            print(f"| `{spec.split(',profile')[0]}` | {100 * found:.0f}% |", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("texts", nargs="+")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--prefill", type=int, default=1536)
    parser.add_argument("--trials", type=int, default=4)
    parser.add_argument("--lengths", default="2048")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        profiles = []
        half = max(1, len(options.texts) // 2)
        for number, texts in enumerate((options.texts[:half], options.texts[half:] or options.texts[:half])):
            profiles.append(f"{folder}/{number}.profile")
            kvasir(options.kvasir, "profile", "-m", options.model, *files(texts), "-o", profiles[-1], "--articles", "20")
        agreement = kvasir(options.kvasir, "profile", "--compare", *profiles)
        print(f"Profiles of the two halves: {100 * agreement['same_representative']:.0f}% of the heads follow the same head, "
              f"{100 * agreement['same_cluster']:.0f}% are in corresponding clusters")
        perplexity(options, profiles[0])
        needle(options, profiles[0])


if __name__ == "__main__":
    main()
