"""Lin, Lazy Pruning for Practical StreamingLLM; Xiao et al., StreamingLLM (arXiv 2309.17453)."""
import figures as f
from claim import Claim

SOURCE = "Lazy pruning"
STREAM = ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--tokens", 16384, "--skip", 8192, "--chunk", 256, "--json"]
SINKS = ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--window", 2048, "--windows", 1, "--chunk", 256, "--json"]
CAP = 7936
PERIODS = (1, 16, 64, 256)


def kv(*policies):
    return [part for policy in policies for part in ("--kv", policy)]


def speed_ratio(bench, a, b):
    """Returns how many times as fast policy a decodes as policy b."""
    speeds = [figure["tokens_per_s"] for figure in bench["figures"] if figure["test"] == "decode"]
    return speeds[a] / speeds[b]


def prunes(r):
    return [run["layers"][0]["prunes"] for run in r["lazy-prunes"]["runs"]]


SPEED = {"lazy-speed": ["bench", "-m", "{model}", "--prefill", 0, "--decode", 256, "--depth", 8192, "--repeat", 5, "--json",
                        *kv(f"streaming:cap={CAP},realign=rotate", f"streaming:cap={CAP},every=64,realign=rotate",
                            f"streaming:cap={CAP}", f"streaming:cap={CAP},every=64")]}
EVERY = {"lazy-every": [*STREAM, *kv("full", f"window:size={CAP}", *(f"streaming:cap={CAP},every={r}" for r in PERIODS))]}
RECOMPUTE = {"lazy-recompute": ["eval", "ppl", "-m", "{model}", "-f", "{books}/hard-times.txt", "--tokens", 8192, "--skip", 2048,
                                "--json", *kv("recompute:size=1024,stride=32", "streaming:cap=1024", "streaming:cap=1024,every=64",
                                             "streaming:cap=1024,realign=rotate", "streaming:cap=1024,every=64,realign=rotate")]}
MINI_EVERY = {"lazy-every-mini": ["eval", "ppl", "-m", "{mini}", "-f", "{books}", "--tokens", 8192, "--skip", 4096, "--chunk", 256, "--json",
                                  *kv(*(f"streaming:sinks=32,cap=2048,every={r}" for r in PERIODS))]}
KNOBS = {"lazy-knobs": ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--tokens", 6144, "--skip", 2048, "--chunk", 256, "--json",
                        *kv("streaming:cap=1024,every=64", "streaming:cap=1024,every=64,slack=64",
                            "streaming:cap=1024,every=64,max_drop=8", "streaming:cap=1024,every=64,overlap=64",
                            "streaming:cap=1024,every=64,refresh=64")]}
PRUNES = {"lazy-record": ["record", "-m", "{mini}", "-f", "{books}/hard-times.txt", "--tokens", 1024, "--out", "{out}/attention.npy", "--json"],
          "lazy-prunes": ["replay", "--trace", "{out}/attention.npy", "--json",
                          *(part for r in PERIODS for part in ("--policy", f"streaming:cap=256,every={r}"))]}
COUNT = {"lazy-sinks": [*SINKS, *kv("full", "window:size=512", *(f"streaming:sinks={s},window={512 - s}" for s in (1, 2, 4, 8, 32)))]}

CLAIMS = [
    Claim("every-64-faster", SOURCE, "Pruning every 64 tokens instead of every token decodes 1.36 times as fast (GPU; every prune "
          "rotates the kept keys)", SPEED,
          lambda r: f"{speed_ratio(r['lazy-speed'], 1, 0):.2f} times with `realign=rotate`, {speed_ratio(r['lazy-speed'], 3, 2):.2f} "
                    f"with frames (at {CAP:,} kept)",
          lambda r: "agrees" if speed_ratio(r["lazy-speed"], 1, 0) > 1.1 else "disagrees",
          "With frames a prune moves no key, so there is little left to save"),
    Claim("cache-faster-than-recompute", SOURCE, "A pruned cache is 6.81 times as fast as recomputing the window (GPU)", RECOMPUTE,
          lambda r: f"{f.mean(r['lazy-recompute'], 0, 'tpot_ms') / f.mean(r['lazy-recompute'], 2, 'tpot_ms'):.0f} times",
          lambda r: "agrees" if f.mean(r["lazy-recompute"], 0, "tpot_ms") > 2 * f.mean(r["lazy-recompute"], 2, "tpot_ms") else "disagrees"),
    Claim("update-amortised", SOURCE, "A token costs T_fwd + T_update / R: pruning every R tokens divides the update's cost by R", RECOMPUTE,
          lambda r: "bookkeeping of a token, `every=1` and 64: " + "; ".join(
              f"{f.mean(r['lazy-recompute'], i, 'cache_op_ms') * 1000:.0f} and {f.mean(r['lazy-recompute'], i + 1, 'cache_op_ms') * 1000:.0f} µs with "
              f"{name}, of {f.mean(r['lazy-recompute'], i, 'forward_ms'):.1f} ms" for i, name in ((3, "`realign=rotate`"), (1, "frames"))),
          lambda r: "agrees" if f.mean(r["lazy-recompute"], 3, "cache_op_ms") > 5 * f.mean(r["lazy-recompute"], 4, "cache_op_ms") else "disagrees"),
    Claim("prune-counts", SOURCE, "A text of N tokens is pruned (N - C) / R times, rounded down", PRUNES,
          lambda r: "; ".join(f"`every={e}`: {n}" for e, n in zip(PERIODS, prunes(r))) + " of 1,024 tokens keeping 256",
          lambda r: "agrees" if prunes(r) == [(1024 - 256) // e for e in PERIODS] else "disagrees"),
    Claim("every-keeps-quality", SOURCE, "Perplexity does not depend on how many tokens a prune takes, 1 to 256", EVERY,
          lambda r: "; ".join(f"`every={e}`: {f.ppl(r['lazy-every'], 2 + i):.3f}" for i, e in enumerate(PERIODS)),
          lambda r: f.all_of(*(f.alike(r["lazy-every"], 2 + i, 2, 0.005) for i in (1, 2, 3)))),
    Claim("every-keeps-quality-2048", SOURCE, "Perplexity does not depend on how many tokens a prune takes, at a cap of 2,048 with 32 sinks either", MINI_EVERY,
          lambda r: "bundled model: " + "; ".join(f"`every={e}`: {f.ppl(r['lazy-every-mini'], i):.3f}" for i, e in enumerate(PERIODS)),
          lambda r: f.all_of(*(f.alike(r["lazy-every-mini"], i, 0, 0.005) for i in (1, 2, 3)))),
    Claim("beyond-context", SOURCE, "Beyond the trained context the full cache fails, Start+Recent does not", EVERY,
          lambda r: f"perplexity of tokens 8,192 to 16,384: `full` {f.ppl(r['lazy-every'], 0):.1f}, `streaming` {f.ppl(r['lazy-every'], 2):.2f}",
          lambda r: f.below(r["lazy-every"], 2, 0)),
    Claim("window-collapses", SOURCE, "A window without the first tokens collapses", {**EVERY, **COUNT},
          lambda r: f"perplexity {f.ppl(r['lazy-sinks'], 1):.1f} against {f.ppl(r['lazy-sinks'], 4):.2f} with 4 sinks (512 kept); "
                    f"{f.ppl(r['lazy-every'], 1):.1f} against {f.ppl(r['lazy-every'], 2):.2f} ({CAP:,} kept)",
          lambda r: f.all_of(f.below(r["lazy-sinks"], 4, 1), f.below(r["lazy-every"], 2, 1))),
    Claim("four-sinks", SOURCE, "One or two sinks do not suffice, four do (StreamingLLM, Llama 2 and others)", COUNT,
          lambda r: "; ".join(f"{s}: {f.ppl(r['lazy-sinks'], 2 + i):.2f}" for i, s in enumerate((1, 2, 4, 8, 32))),
          lambda r: f.differ(r["lazy-sinks"], 4, 2, 0.02),
          "SmolLM2 has its sink on the first token: with that one kept the window's loss is gone, and more add nothing"),
    Claim("knobs", SOURCE, "`slack`, `max_drop`, `overlap` and `refresh` have little effect on perplexity", KNOBS,
          lambda r: "; ".join(f"{name}: {f.signed(r['lazy-knobs'], i, 0)} nats" for i, name in
                              ((1, "slack"), (2, "max_drop"), (3, "overlap"), (4, "refresh"))),
          lambda r: f.all_of(*(f.alike(r["lazy-knobs"], i, 0, 0.01) for i in (1, 2, 3, 4)))),
]
