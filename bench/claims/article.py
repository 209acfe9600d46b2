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
                              "--parallel", 10, "--compare-full", "--json", *kv(*EVICTION)]}
CACHE = {"article-cache": ["eval", "ppl", "-m", "{model}", "-f", "{books}/hard-times.txt", "--tokens", 2048, "--skip", 1024, "--json",
                           *kv("recompute:size=2048,stride=32", "full")]}
STACK = {"article-stack": ["{bin}/engine_sweep", "{model}", "--stack", "--memory", 2, "--clients", 40, "--requests", 48, "--json"]}
SIMULATED = {"article-simulated": ["{bin}/serve_simulator", "waste", "blocks", "utilisation", "marks", "--json"]}
SWAP = {"article-swap": ["{bin}/swapping", "{model}", "{out}", "f16", 128, 512, 2048, 8000]}
BATCH = {f"article-batch-{t}": ["bench", "-m", "{model}", "--prefill", 0, "--decode", 16, "--depth", 1024, "--batch", "1,4,16,64", "--repeat", 3,
                                "--kv-type", t, "--json"] for t in ("f16", "q8", "q4")}


INFO = {"article-info": ["info", "-m", "{model}", "--json"]}
SHARED = {"article-shared": ["{bench}/shared_prompt.py", "{bin}/kvasir", "{model}", "--json"]}


def kept(r, i):
    return f"{f.mean(r['article-eviction'], i, 'kld_mean'):.4f} ({f.mean(r['article-eviction'], i, 'kept_mean'):,.0f})"


def stack(r):
    return [row["tokens_per_second"] for row in r["article-stack"]]


def simulated(r, table, column):
    return [row[column] for row in r["article-simulated"][table]]


def listed(values, form="{:g}"):
    return ", ".join(form.format(value) for value in values)


def swaps(r):
    """Returns tokens and the cost of recomputing over that of swapping, row by row."""
    rows = [line.split() for line in r["article-swap"].splitlines()[2:]]
    return [(int(row[0]), float(row[2]), float(row[5])) for row in rows]


def batches(r, codec, key="tokens_per_s"):
    return [figure[key] for figure in r[f"article-batch-{codec}"]["figures"] if figure["test"] == "decode"]


def growth(r, codec):
    """Returns the throughput of the largest batch over that of one request."""
    return batches(r, codec)[3] / batches(r, codec)[0]


def share_of_bandwidth(r, codec):
    return [read / r[f"article-batch-{codec}"]["read_gigabytes_per_s"] for read in batches(r, codec, "gigabytes_per_s")]


def from_cache(r):
    return any(share > 1 for codec in ("f16", "q8", "q4") for share in share_of_bandwidth(r, codec))


def without(r, key):
    return r["article-shared"][0][key]


def shared(r, key):
    return r["article-shared"][1][key]


def by_formula(r):
    """Returns the bytes of the article's formula for the prompt and answer of one request."""
    keys = r["article-info"]["layers"]["keys"]
    return 2 * keys["layers"] * keys["kv_heads"] * keys["head_dim"] * 2 * without(r, "tokens")


def stored_once(r):
    """Returns the bytes of the shared tokens, once, and of each request's other tokens and its answer."""
    once = (shared(r, "prompt_tokens") - shared(r, "computed_tokens")) / (shared(r, "requests") - 1)
    return (once + shared(r, "requests") * (shared(r, "tokens") - once)) * by_formula(r) / without(r, "tokens")


def of_formula(r):
    return without(r, "held_bytes") / (without(r, "most_running") * by_formula(r))


def of_plan(r):
    """Returns what the requests held at once without sharing, over what the plan of one foretells times their number."""
    return without(r, "held_bytes") / (without(r, "most_running") * without(r, "plan")["kv_bytes"])


CLAIMS = [
    Claim("cache", SOURCE, "A KV cache makes generation 15 times as fast (180 s against 12 s)", CACHE,
          lambda r: f"{f.mean(r['article-cache'], 0, 'tpot_ms') / f.mean(r['article-cache'], 1, 'tpot_ms'):.0f} times per token, behind 1,024 to "
                    "2,048 tokens",
          lambda r: "agrees" if f.mean(r["article-cache"], 0, "tpot_ms") > 7.5 * f.mean(r["article-cache"], 1, "tpot_ms") else "disagrees"),
    Claim("eviction", SOURCE, "With 1,024 of 4,096 tokens heavy hitters lose less than a window with sinks", EVICT,
          lambda r: "nats of KL (tokens kept): " + ", ".join(f"`{name.split(':')[0]}{' (recent 512)' if 'recent=512' in name else ''}` {kept(r, i)}"
                                               for i, name in enumerate(EVICTION) if i),
          lambda r: f.each_of(*(f.below(r["article-eviction"], i, 1, "kld_mean") for i in (3, 4))),
          lambda r: "`h2o` less `streaming`: " + ", ".join(f"{f.signed(r['article-eviction'], i, 1, 'kld_mean')} nats with {recent} recent tokens"
                                                           for i, recent in ((3, 128), (4, 512)))),
    Claim("recent", SOURCE, "512 recent tokens among the 1,024 are better than 128", EVICT,
          lambda r: f"{f.signed(r['article-eviction'], 4, 3, 'kld_mean')} nats of KL",
          lambda r: f.below(r["article-eviction"], 4, 3, "kld_mean")),
    Claim("stack", SOURCE, "In the same memory pages, 8 bits, cached prefixes and 4 bits multiply the throughput by 1.9, 2.5, 2.8 and 3.4", STACK,
          lambda r: ", ".join(f"{s / stack(r)[0]:.1f}" for s in stack(r)[1:]) + " times",
          lambda r: "agrees" if all(a < b for a, b in zip(stack(r), stack(r)[1:])) else "disagrees",
          "Judged by the order alone: each step adds. The article's figures are of a GPU"),
    Claim("waste", SOURCE, "Contiguous allocation wastes 80% (chat), 81% (code), 71% (summaries), 32% (long documents)", SIMULATED,
          lambda r: listed(simulated(r, "waste", "contiguous at the end %")) + " (mean)%; pages " +
          listed(simulated(r, "waste", "paged at the end %")) + "% (simulated)",
          lambda r: "open", "The simulation draws lengths whose means give the article's shares, as it gives no lengths. Only the pages' shares are a result"),
    Claim("blocks", SOURCE, "The overhead of blocks of 1, 4, 8, 16, 32, 64, 128 tokens is 8, 4, 2.8, 2.8, 3.8, 5.8, 9.2%", SIMULATED,
          lambda r: listed(simulated(r, "blocks", "overhead %")) + "% (simulated)",
          lambda r: "agrees" if all(abs(row["overhead %"] - row["article %"]) < 1 for row in r["article-simulated"]["blocks"]) else "disagrees",
          "The least is at 8 to 16 in both. From 8 on the article is some 2 points above what the last page and our bookkeeping take"),
    Claim("utilisation", SOURCE, "Contiguous allocation uses 20 to 40% of its memory, pages 96 to 99%", SIMULATED,
          lambda r: listed(simulated(r, "utilisation", "utilisation %")) + "% (simulated)",
          lambda r: "agrees" if 96 <= simulated(r, "utilisation", "utilisation %")[1] <= 99.5 else "disagrees",
          "Judged by the pages: the contiguous share follows from the lengths (`waste`)"),
    Claim("marks", SOURCE, "With stop marks of 70, 85, 90, 95, 98% throughput is 580, 720, 760, 780, 790 tokens/s, preemptions a minute 0, 0.2, 1.5, "
          "8, 25, the 99th percentile of pauses 120 to 1,200 ms", SIMULATED,
          lambda r: listed(simulated(r, "marks", "tokens/s")) + " tokens/s; " + listed(simulated(r, "marks", "preemptions/min")) +
          " preemptions a minute; " + listed(simulated(r, "marks", "p99 gap ms")) + " ms (simulated, a pass in 60 ms)",
          lambda r: f.all_of("agrees" if simulated(r, "marks", "tokens/s") == sorted(simulated(r, "marks", "tokens/s")) else "disagrees",
                             "agrees" if simulated(r, "marks", "preemptions/min")[4] > 10 else "disagrees",
                             "agrees" if simulated(r, "marks", "p99 gap ms")[4] > 3 * simulated(r, "marks", "p99 gap ms")[0] else "disagrees"),
          "Throughput and preemptions follow the article. The 99th percentile of pauses does not: preemptions are too few of all pauses to reach it"),
    Claim("swap", SOURCE, "Below some 512 tokens recomputing is cheaper than swapping, above it swapping", SWAP,
          lambda r: "; ".join(f"{n:,} tokens: {1000 * c:.0f} and {1000 * s:.0f} ms" for n, c, s in swaps(r)) + " (recompute and swap)",
          lambda r: "agrees" if swaps(r)[0][1] < swaps(r)[0][2] and swaps(r)[-1][1] > swaps(r)[-1][2] else "disagrees",
          "Two cores compute a token in some milliseconds and swap it in a tenth of one: swapping is cheaper at every length"),
    Claim("batch", SOURCE, "Throughput grows with the batch, and more with smaller codes", BATCH,
          lambda r: "; ".join(f"{t}: " + ", ".join(f"{s:.0f}" for s in batches(r, t)) for t in ("f16", "q8", "q4")) +
          " tokens/s at batches of 1, 4, 16, 64",
          lambda r: f.all_of(*("agrees" if batches(r, t)[3] > batches(r, t)[0] else "disagrees" for t in ("f16", "q8", "q4")),
                             "agrees" if growth(r, "q4") > growth(r, "q8") > growth(r, "f16") else "disagrees"),
          lambda r: "It grows " + ", ".join(f"{growth(r, t):.2f}" for t in ("f16", "q8", "q4")) + " times with f16, q8 and q4"),
    Claim("bandwidth", SOURCE, "Decoding is bound by the bytes that a step reads", BATCH,
          lambda r: "; ".join(f"{t}: " + ", ".join(f"{100 * s:.0f}" for s in share_of_bandwidth(r, t)) for t in ("f16", "q8", "q4")) +
          f"% of {r['article-batch-f16']['read_gigabytes_per_s']:.0f} GB/s",
          lambda r: "open" if from_cache(r) else "agrees" if share_of_bandwidth(r, "f16")[0] > 0.7 else "disagrees",
          lambda r: "More than memory gives: the processor's cache holds the weights" if from_cache(r) else ""),
    Claim("shared-prompt", SOURCE, "A system prompt of 2,000 tokens that 64 requests share is stored once", {**SHARED, **INFO},
          lambda r: f"{shared(r, 'computed_tokens'):,} of {shared(r, 'prompt_tokens'):,} prompt tokens computed, {shared(r, 'held_bytes') / 2**20:.0f} "
                    f"of {without(r, 'held_bytes') / 2**20:.0f} MiB held, {shared(r, 'seconds'):.1f} of {without(r, 'seconds'):.1f} s",
          lambda r: "agrees" if shared(r, "held_bytes") < 1.1 * stored_once(r) else "disagrees",
          lambda r: f"The prompt once and each request's own tokens take {stored_once(r) / 2**20:.0f} MiB"),
    Claim("memory-per-user", SOURCE, "Memory is 2 x layers x KV heads x head size x bytes x tokens, for each user", {**SHARED, **INFO},
          lambda r: f"{without(r, 'held_bytes') / 2**20:.1f} MiB held by {without(r, 'most_running')} requests at once: {of_formula(r):.3f} of the "
                    f"formula, {of_plan(r):.3f} of what `plan` foretells",
          lambda r: "agrees" if 0.9 < of_formula(r) <= 1.02 and of_plan(r) <= 1 else "disagrees"),
]
