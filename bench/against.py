#!/usr/bin/env python3
"""Reading a prompt and decoding, of one GGUF file, by Kvasir and by other programs in turn:

  against.py MODEL --kvasir build/release/bin/kvasir [--llama-bench PATH] [--openvino PYTHON] [--prefill 512] [--decode 32]
             [--depths 0,4096] [--batch 0] [--rounds 3]

PYTHON is an interpreter that has openvino-genai. Prefill is measured behind an empty cache, decoding behind each depth, and --batch N
measures N requests at once: prompts of 462 tokens and answers of 64, by the servers' own scheduling (not by llama.cpp). In a round
each program runs once for every row, alone, and measures --repeat times; the better of llama.cpp's two kinds of attention (-fa 0,
-fa 1) in the first round is kept for the others. Prints a table of medians over all rounds with the least and the most, Kvasir's
median over theirs, and each program's peak of resident memory, mapped weights included; with --json one object. -- OPTIONS go to
`kvasir bench`.
"""

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tests" / "server"))

from live_server import LiveServer

BATCH_PROMPT, BATCH_ANSWER = 462, 64


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


class Kvasir:
    name = "Kvasir"

    def __init__(self, options):
        self.options, self.bandwidths = options, []

    def measure(self, test, tokens):
        """Returns samples of tokens/s and the peak of memory."""
        options = self.options
        if test == "batch":
            return self.batch(tokens), 0
        sizes = ["--prefill", tokens, "--decode", 0, "--depth", 0] if test == "prefill" else \
            ["--prefill", 0, "--decode", options.decode, "--depth", tokens]
        result, memory = run([options.kvasir, "bench", "-m", options.model, "-t", str(options.threads), "--json", "-q", "--repeat",
                              str(options.repeat), *map(str, sizes), *options.kvasir_options])
        self.bandwidths.append(result["read_gigabytes_per_s"])
        figure = next(figure for figure in result["figures"] if figure["test"] == test)
        return [figure["lowest"], figure["tokens_per_s"], figure["highest"]], memory

    def batch(self, count):
        draw = random.Random(1)
        samples = []
        with LiveServer(self.options.kvasir, self.options.model, "-t", str(self.options.threads), "--kv", "full", "--max-batch", str(count),
                        "--kv-memory", "4GiB") as server:
            server.complete(max_tokens=2)
            for _ in range(self.options.repeat):
                bodies = [{"prompt": [draw.randrange(256, 30000) for _ in range(BATCH_PROMPT)], "max_tokens": BATCH_ANSWER, "ignore_eos": True}
                          for _ in range(count)]
                clients = [threading.Thread(target=lambda body=body: server.complete(**body)) for body in bodies]
                began = time.monotonic()
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                samples.append(count * (BATCH_PROMPT + BATCH_ANSWER) / (time.monotonic() - began))
            server.end()
        return sorted(samples)


class LlamaCpp:
    name = "llama.cpp"

    def __init__(self, options):
        self.options, self.attention = options, {}

    def measure(self, test, tokens):
        if test == "batch":
            return None, 0
        tried, memory = {}, 0
        for attention in (self.attention[test, tokens],) if (test, tokens) in self.attention else (0, 1):
            sizes = ["-p", tokens, "-n", 0] if test == "prefill" else ["-p", 0, "-n", self.options.decode, "-d", tokens]
            result, bytes_ = run([self.options.llama_bench, "-m", self.options.model, "-t", str(self.options.threads), "-r",
                                  str(self.options.repeat), "-o", "json", "-fa", str(attention), *map(str, sizes)])
            tried[attention] = sorted(result[0]["samples_ts"])
            memory = max(memory, bytes_)
        best = max(tried, key=lambda attention: statistics.median(tried[attention]))
        self.attention[test, tokens] = best
        return tried[best], memory


class OpenVino:
    name = "OpenVINO GenAI"

    def __init__(self, options):
        self.options = options

    def measure(self, test, tokens):
        sizes = {"prefill": ["--prefill", tokens, "--depths", ""], "decode": ["--prefill", "", "--depths", tokens],
                 "batch": ["--prefill", "", "--depths", "", "--batch", tokens]}[test]
        result, memory = run([self.options.openvino, str(HERE / "openvino_bench.py"), self.options.model, "--threads", str(self.options.threads),
                              "--repeat", str(self.options.repeat), "--decode", str(self.options.decode), *map(str, sizes)])
        samples = result[0]["samples"]
        if test == "batch":
            samples = [tokens * (BATCH_PROMPT + BATCH_ANSWER) / seconds for seconds in samples]
        return sorted(samples), memory


def numbers(text):
    return [int(number) for number in text.split(",")]


def described(test, tokens):
    return {"prefill": f"prompt of {tokens:,}", "decode": f"decode behind {tokens:,}",
            "batch": f"{tokens} requests of {BATCH_PROMPT} + {BATCH_ANSWER}"}[test]


def main():
    split = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--kvasir", default=str(HERE.parent / "build" / "release" / "bin" / "kvasir"))
    parser.add_argument("--llama-bench")
    parser.add_argument("--openvino", metavar="PYTHON")
    parser.add_argument("--threads", "-t", type=int, default=os.cpu_count())
    parser.add_argument("--prefill", type=numbers, default=[512])
    parser.add_argument("--decode", type=int, default=32)
    parser.add_argument("--depths", type=numbers, default=[0, 4096])
    parser.add_argument("--batch", type=int, default=0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(sys.argv[1:split])
    options.kvasir_options = sys.argv[split + 1:]
    programs = [Kvasir(options)]
    programs += [LlamaCpp(options)] if options.llama_bench else []
    programs += [OpenVino(options)] if options.openvino else []
    tests = [("prefill", tokens) for tokens in options.prefill] + [("decode", depth) for depth in options.depths]
    tests += [("batch", options.batch)] if options.batch else []
    memory = {program.name: 0 for program in programs}
    rows = []
    for test, tokens in tests:
        samples = {}
        for _ in range(options.rounds):
            for program in programs:
                found, bytes_ = program.measure(test, tokens)
                memory[program.name] = max(memory[program.name], bytes_)
                if found is not None:
                    samples.setdefault(program.name, []).append((found[0], statistics.median(found), found[-1]))
        row = {"test": test, "tokens": tokens}
        for name, rounds in samples.items():
            row[name] = [min(one[0] for one in rounds), statistics.median(one[1] for one in rounds), max(one[2] for one in rounds)]
        row["ratios"] = {name: row["Kvasir"][1] / row[name][1] for name in samples if name != "Kvasir"}
        rows.append(row)
        print(f"{described(test, tokens)}: done", file=sys.stderr, flush=True)
    bandwidths = programs[0].bandwidths
    if options.json:
        print(json.dumps({"model": options.model, "threads": options.threads, "rows": rows, "memory": memory, "read_gigabytes_per_s": bandwidths}))
        return
    others = [program.name for program in programs[1:]]
    print(f"| tokens/s | {' | '.join(program.name for program in programs)} | {' | '.join('over ' + name for name in others)} |")
    print("|---" * (1 + len(programs) + len(others)) + "|")
    for row in rows:
        cells = [described(row["test"], row["tokens"])]
        for program in programs:
            least, median, most = (f"{figure:.3g}" if figure < 1000 else f"{figure:,.0f}" for figure in row.get(program.name, [0, 0, 0]))
            cells.append(f"{median} ({least} to {most})" if program.name in row else "")
        cells += [f"{row['ratios'][name]:.2f}" if name in row["ratios"] else "" for name in others]
        print(f"| {' | '.join(cells)} |")
    print("\npeak memory: " + ", ".join(f"{name} {bytes_ / 2**30:.2f} GiB" for name, bytes_ in memory.items()) +
          (f"; memory reads at {min(bandwidths):.1f} to {max(bandwidths):.1f} GB/s" if bandwidths else ""))


if __name__ == "__main__":
    main()
