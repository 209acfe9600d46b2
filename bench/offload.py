#!/usr/bin/env python3
"""What synckv's cold tier holds, costs and hides: offload.py KVASIR MODEL TEXT [--depth N] [--generate N] [--trials T]

Profiles the heads of the model on the text's second half, reads N tokens of its first half as a prompt, and generates.
Prints, for mem=30% and 50%: bytes in memory beside the formula; the perplexity of what follows with everything in
memory and with the cold tier (the bits are the same); the share of the time of fetching that lay behind other work,
with the file in the page cache and without (`cold`: it is dropped from there all the time, so that the disk is read);
tokens a second beside `full`, the best of T trials. Then a context whose keys and values do not fit: half of the KV
memory that `full` needs. Run it on an idle machine.
"""

import argparse
import json
import os
import subprocess
import tempfile
import time
from pathlib import Path

SHARES = (30, 50)
OFFLOADS = ("off", "file", "file, cold")


def run(*arguments):
    return subprocess.run([str(a) for a in arguments], capture_output=True, text=True)


def answer(*arguments):
    done = run(*arguments, "--json")
    if done.returncode != 0:
        raise SystemExit(done.stderr)
    return json.loads(done.stdout)


def answer_from_disk(*arguments):
    """As answer(), while the files without a name that the program has open are kept out of the page cache."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([str(a) for a in (*arguments, "--json")], stdout=output, stderr=subprocess.DEVNULL)
        folder = Path(f"/proc/{process.pid}/fd")
        while process.poll() is None:
            for name in folder.iterdir() if folder.exists() else ():
                try:
                    if not os.readlink(name).endswith(" (deleted)"):
                        continue
                    descriptor = os.open(name, os.O_RDONLY)
                    os.fdatasync(descriptor)
                    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
                    os.close(descriptor)
                except OSError:
                    pass  # it has ended, or closed the file
            time.sleep(0.002)
        assert process.returncode == 0
        output.seek(0)
        return json.load(output)


def table(header, rows):
    print("\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def megabytes(count):
    return f"{count / 1e6:.2f} MB"


class Bench:
    def __init__(self, options, folder):
        self.options = options
        self.folder = Path(folder)
        text = Path(options.text).read_bytes()
        self.half = self.folder / "half.txt"
        self.half.write_bytes(text[: len(text) // 2])
        other = self.folder / "other.txt"
        other.write_bytes(text[len(text) // 2 :])
        self.profile = self.folder / "heads.profile"
        answer(options.kvasir, "profile", "-m", options.model, "-f", other, "-o", self.profile)
        plan = answer(options.kvasir, "plan", options.model, "--kv", "full", "--ctx", options.depth + options.generate)
        self.token_bytes = plan["kv_bytes_per_token"]
        self.full_bytes = plan["kv_bytes"]
        profile = self.profile.read_text()
        words = dict(line.split(maxsplit=1) for line in profile.splitlines() if len(line.split(maxsplit=1)) == 2)
        self.heads, self.reps = int(words["kv_heads"]), int(words["reps"])
        self.prompt = self.folder / "prompt.txt"
        self.prompt.write_bytes(self.beginning(options.depth))

    def beginning(self, tokens):
        """The longest beginning of the text of no more than so many tokens, by bytes."""
        text = self.half.read_bytes()
        low, high = 0, len(text)
        part = self.folder / "part.txt"
        while high - low > 64:
            middle = (low + high) // 2
            part.write_bytes(text[:middle])
            count = answer(self.options.kvasir, "tokenize", self.options.model, "-f", part)["count"]
            low, high = (middle, high) if count <= tokens else (low, middle)
        return text[:low]

    def policy(self, share, offload):
        return f"synckv:mem={share}%,profile={self.profile},offload={offload}"

    def generate(self, policy, *more, answer=answer):
        return answer(self.options.kvasir, "run", "-m", self.options.model, "-f", self.prompt, "-n", self.options.generate,
                      "--temp", 0, "--ignore-eos", "--kv", policy, *more)

    def fastest(self, share, offload):
        how = answer_from_disk if offload == "file, cold" else answer
        policy = self.policy(share, offload.removesuffix(", cold")) if share else "full"
        return max((self.generate(policy, answer=how) for _ in range(self.options.trials)), key=lambda a: a["tokens_per_s"])

    def perplexity(self, *policies):
        tokens = self.options.depth + self.options.generate
        named = [part for policy in policies for part in ("--kv", policy)]
        runs = answer(self.options.kvasir, "eval", "ppl", "-m", self.options.model, "-f", self.half, "--tokens", tokens,
                      "--prefill", self.options.depth, "--skip", self.options.depth, *named)
        return [each["ppl"] for each in runs.get("runs", [runs])]

    def memory(self, share, result):
        """Bytes of keys and values in memory: those that were counted, and by the formula."""
        kv = result["kv"]
        prompt, seen, slots = result["prompt_tokens"], kv["seen"], 32
        lead = self.reps / self.heads
        chosen = int(prompt * (share / 100 - lead) / (1 - lead))
        leaders = lead * self.token_bytes * (-(-seen // slots) * slots)
        formula = self.token_bytes * (lead * seen + (1 - lead) * chosen)
        return [f"{share}%", megabytes(leaders + kv["offload"]["hot_bytes"]), megabytes(formula),
                f"{(leaders + kv['offload']['hot_bytes'] - formula) / (self.token_bytes * (1 - lead)):.0f}",
                megabytes(kv["bytes"]), megabytes(kv["bytes_peak"]), megabytes(self.token_bytes * seen)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kvasir")
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--depth", type=int, default=7000, help="tokens of the prompt")
    parser.add_argument("--generate", type=int, default=200)
    parser.add_argument("--trials", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(options, folder)
        full = bench.fastest(0, "off")
        variants = [(share, offload) for share in SHARES for offload in OFFLOADS]
        results = {variant: bench.fastest(*variant) for variant in variants}
        table(["mem", "in memory", "formula", "tokens of NR heads beside", "all charged", "peak", "everything"],
              [bench.memory(share, results[share, "file"]) for share in SHARES])

        read = [(share, offload) for share, offload in variants if not offload.endswith("cold")]
        perplexity, *others = bench.perplexity("full", *(bench.policy(*variant) for variant in read))
        perplexities = dict(zip(read, others))
        rows = [["full", f"{perplexity:.4f}", "", f"{full['tokens_per_s']:.1f}", "", "", ""]]
        for share, offload in variants:
            result = results[share, offload]
            hidden = stalls = fetched = ""
            if offload != "off":
                chosen = result["kv"]["offload"]["chosen"]
                hidden = f"{100 * (1 - chosen['stall_seconds'] / chosen['seconds']):.1f}%"
                stalls = f"{chosen['stalls']} of {chosen['rounds']}, {1000 * chosen['stall_seconds']:.1f} ms"
                fetched = megabytes(chosen["bytes"] / options.generate)
            same = results[share, "off"]["text"] == result["text"]
            rows.append([f"{share}%, offload={offload}", f"{perplexities[share, offload.removesuffix(', cold')]:.4f}", "yes" if same else "NO",
                         f"{result['tokens_per_s']:.1f}", hidden, stalls, fetched])
        table(["variant", "perplexity", "same text", "tokens/s", "hidden", "stalls", "fetched a token"], rows)

        half = bench.full_bytes // 2
        print(f"\nWith a KV memory of {megabytes(half)}, half of what `full` needs:")
        refused = run(options.kvasir, "run", "-m", options.model, "-f", bench.prompt, "-n", options.generate, "--kv", "full",
                      "--kv-memory", half)
        print("full:", refused.stderr.strip().splitlines()[-1] if refused.returncode else "runs")
        held = bench.generate(bench.policy(30, "file"), "--kv-memory", half, "--chunk", 128)
        print(f"synckv:mem=30%,offload=file: {held['tokens']} tokens behind {held['prompt_tokens']}, at most "
              f"{megabytes(held['kv']['bytes_peak'])}, {held['tokens_per_s']:.1f} tokens/s, the text of offload=off: "
              f"{'yes' if held['text'] == results[30, 'off']['text'] else 'NO'}")


if __name__ == "__main__":
    main()
