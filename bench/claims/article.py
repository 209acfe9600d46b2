"""The article on KV memory in servers: paging, admission, eviction, codecs and shared prefixes."""
import statistics

import figures as f
from claim import Claim
from lazy_pruning import kv

SOURCE = "Article"
EVICTION = ("full", "streaming:cap=1024", "random:budget=1024,sinks=4,recent=128", "h2o:budget=1024,recent=128,sinks=4",
            "h2o:budget=1024,recent=512,sinks=4", "tova:budget=1024", "lethe:start=512,max=1024", "cascade:size=1024,n=4",
            "snapkv:budget=1024", "pyramidkv:budget=1024", "cake:budget=1024")
EVICT = {"article-eviction": ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--window", 4096, "--windows", 1, "--prefill", 3584, "--score", "all",
                              "--compare-full", "--json", *kv(*EVICTION)]}
CACHE = {"article-cache": ["eval", "ppl", "-m", "{model}", "-f", "{books}/hard-times.txt", "--tokens", 2048, "--skip", 1024, "--json",
                           *kv("recompute:size=2048,stride=32", "full")]}
STACK = {"article-stack": ["{bin}/engine_sweep", "{model}", "--stack", "--memory", 2, "--clients", 40, "--requests", 48, "--json"]}
MARKS = {"article-marks": ["{bin}/engine_sweep", "{model}", "--memory", 8, "--clients", 24, "--requests", 96, "--json"]}
BATCH = {f"article-batch-{t}": ["bench", "-m", "{model}", "--prefill", 0, "--decode", 16, "--depth", 1024, "--batch", "1,4,16,64", "--repeat", 3,
                                "--kv-type", t, "--json"] for t in ("f16", "q8", "q4")}


def kept(r, i):
    return f"{f.mean(r['article-eviction'], i, 'kld_mean'):.4f}"


def stack(r):
    return [row["tokens_per_second"] for row in r["article-stack"]]


def utilisation(r):
    return [row["utilisation"] * 100 for row in r["article-stack"]]


def marks(r, key):
    return [row[key] for row in r["article-marks"]["stop mark"]]


def batches(r, codec):
    return [figure["tokens_per_s"] for figure in r[f"article-batch-{codec}"]["figures"] if figure["test"] == "decode"]


CLAIMS = [
    Claim("cache", SOURCE, "A KV cache makes generation 15 times as fast (180 s against 12 s)", CACHE,
          lambda r: f"{f.mean(r['article-cache'], 0, 'tpot_ms') / f.mean(r['article-cache'], 1, 'tpot_ms'):.0f} times per token, behind 1,024 to "
                    "2,048 tokens",
          lambda r: "agrees" if f.mean(r["article-cache"], 0, "tpot_ms") > 7.5 * f.mean(r["article-cache"], 1, "tpot_ms") else "disagrees"),
    Claim("eviction", SOURCE, "Of 4,096 tokens 1,024 suffice, and heavy hitters lose less than a window with sinks", EVICT,
          lambda r: "nats of KL: " + ", ".join(f"`{name.split(':')[0]}{' (recent 512)' if 'recent=512' in name else ''}` {kept(r, i)}"
                                               for i, name in enumerate(EVICTION) if i),
          lambda r: f.below(r["article-eviction"], 4, 1, "kld_mean")),
    Claim("recent", SOURCE, "512 recent tokens among the 1,024 are better than 128", EVICT,
          lambda r: f"{f.signed(r['article-eviction'], 4, 3, 'kld_mean')} nats of KL",
          lambda r: f.below(r["article-eviction"], 4, 3, "kld_mean")),
    Claim("stack", SOURCE, "In the same memory pages, 8 bits, cached prefixes and 4 bits multiply the throughput by 1.9, 2.5, 2.8 and 3.4", STACK,
          lambda r: ", ".join(f"{s / stack(r)[0]:.1f}" for s in stack(r)[1:]) + " times",
          lambda r: "agrees" if all(a < b for a, b in zip(stack(r), stack(r)[1:])) else "disagrees"),
    Claim("utilisation", SOURCE, "Contiguous allocation uses 20 to 40% of its memory, pages 96 to 99%", STACK,
          lambda r: f"{utilisation(r)[0]:.1f}% and {utilisation(r)[1]:.1f}%",
          lambda r: "agrees" if utilisation(r)[0] < 60 and utilisation(r)[1] > 96 else "disagrees"),
    Claim("marks", SOURCE, "From a stop mark of 70% to 98% throughput rises by a third, preemptions from 0 to 25 a minute, the 99th percentile of "
          "pauses tenfold", MARKS,
          lambda r: "tokens/s " + ", ".join(f"{x:.0f}" for x in marks(r, "tokens_per_second")) + "; preemptions a minute " +
          ", ".join(f"{x:.1f}" for x in marks(r, "preemptions_per_minute")) + "; p99 of gaps " +
          ", ".join(f"{1000 * x:.0f}" for x in marks(r, "gap_p99_seconds")) + " ms",
          lambda r: "agrees" if marks(r, "tokens_per_second")[4] > marks(r, "tokens_per_second")[0] and
          marks(r, "preemptions_per_minute")[4] > marks(r, "preemptions_per_minute")[0] else "disagrees"),
    Claim("batch", SOURCE, "Throughput grows with the batch, and more with smaller codes", BATCH,
          lambda r: "; ".join(f"{t}: " + ", ".join(f"{s:.0f}" for s in batches(r, t)) for t in ("f16", "q8", "q4")) +
          " tokens/s at batches of 1, 4, 16, 64",
          lambda r: "agrees" if batches(r, "q4")[3] > batches(r, "f16")[3] > batches(r, "f16")[0] else "disagrees"),
]
