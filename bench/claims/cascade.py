"""Willette et al., Cascading KV Cache (arXiv 2406.17808)."""
import math

import figures as f
from claim import Claim
from lazy_pruning import kv

SOURCE = "Cascade"
SIZES = {f"cascade-{size}": ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--tokens", 24576, "--skip", 16384, "--chunk", 256, "--json",
                             *kv(f"streaming:sinks=4,window={size}", *(f"cascade:size={size},n={n}" for n in (1, 2, 4)))]
         for size in (2048, 4096)}
# A sub-cache that accepts every third or fourth token fills later: 4,096 tokens fill n=4 of 512 with accept=2, 10,880 with accept=4.
ABLATE = ("n=4", "n=4,accept=3", "n=4,accept=4", "n=4,gamma=0.9", "n=4,gamma=0.999", "n=4,reduce=max", "n=4,reduce=median", "n=4,select=off",
          "n=4,heads=independent", "n=1", "n=2", "n=8")
ABLATIONS = {f"cascade-ablations-{name}": ["eval", "ppl", "-m", model, "-f", "{books}", "--tokens", 8192, "--skip", 4096, "--chunk", chunk,
                                           "--compare-full", "--json",
                                           *kv("streaming:sinks=4,window=512", *(f"cascade:size=512,{a}" for a in ABLATE))]
             for name, model, chunk in (("smollm2", "{model}", 32), ("mini", "{mini}", 32))}
ACCEPT = {f"cascade-accept-{name}": ["eval", "ppl", "-m", model, "-f", "{books}", "--tokens", 14336, "--skip", 12288, "--chunk", 32, "--json",
                                     *kv("cascade:size=512,n=4", "cascade:size=512,n=4,accept=4")]
          for name, model in (("smollm2", "{model}"), ("mini", "{mini}"))}
DISTANCES = (512, 1024, 2048, 3072, 4096)
SUBJECTS = ("high_school_european_history", "high_school_us_history", "high_school_world_history", "professional_law")
MMLU = {f"cascade-mmlu-{subject}": ["eval", "tasks", "mmlu", "-m", "{model}", "--json", "--data", f"{{mmlu}}/test/{subject}_test.csv",
                                    "--limit", 24, *kv("full", "streaming:sinks=4,window=512", "cascade:size=512,n=4")] for subject in SUBJECTS}


def whole(values):
    """A run for each whole book, in pages of `i16`: as exact as `f16`, and a fifth faster."""
    return {f"cascade-whole-{book}": ["eval", "ppl", "-m", "{model}", "-f", f"{{books}}/{book}.txt", "--skip", 16384, "--chunk", 256,
                                      "--kv-type", "i16", "--json", *kv("streaming:sinks=4,window=2048", "cascade:size=2048,n=4")]
            for book in f.books(values)}


def of_whole(r, policy):
    return [output["runs"][policy]["nll"] for output in r.values()]


def restream(values):
    """A run for each book: 8,192 tokens are read, which fill all caches, and what lies up to 4,096 tokens back is read again."""
    return {f"cascade-restream-{book}": ["eval", "restream", "-m", "{model}", "-f", f"{{books}}/{book}.txt", "--fill", 8192, "--distances",
                                         ",".join(map(str, DISTANCES)), "--json",
                                         *kv("streaming:sinks=4,window=2048", *(f"cascade:size=2048,n={n}" for n in (2, 4)))]
            for book in f.books(values)}


def again(r, policy, distance):
    """Returns the nats per token of each book when it is read again."""
    return [output["runs"][policy]["distances"][DISTANCES.index(distance)]["nll"] for output in r.values()]


def again_less(r, distance):
    return f.paired(again(r, 2, distance), again(r, 0, distance))


def correct(r, policy, subjects=SUBJECTS):
    """Returns 1 or 0 for each question of MMLU."""
    return [question["scores"]["acc"] for subject in subjects for question in r[f"cascade-mmlu-{subject}"]["cells"][policy]["questions"]]


def at_chance(r):
    right = correct(r, 0)
    return sum(right) / len(right) < 0.25 + 2 * math.sqrt(0.25 * 0.75 / len(right))


def mmlu_verdict(r):
    return "open" if at_chance(r) else f.less(f.paired(correct(r, 1), correct(r, 2)))


def of_subject(r, subject):
    shares = "/".join(f"{100 * sum(correct(r, i, (subject,))) / len(correct(r, i, (subject,))):.0f}" for i in range(3))
    return f"{subject.replace('high_school_', '').replace('_', ' ')} {shares}"


def accepted(r, name, key):
    """Returns a figure of accept=2 less that of accept=4, where both caches are full."""
    run = r[f"cascade-accept-{name}"]
    return f.difference(run, 0, 1, key)


def filled(r):
    """Returns whether the caches of the variants hold equally many tokens."""
    return all(abs(f.mean(run, 0, "kept_mean") - f.mean(run, 1, "kept_mean")) < 0.01 * f.mean(run, 0, "kept_mean") for run in r.values())


def ablation(a, b):
    """Compares two variants on both models; a is expected to be nearer to the full cache."""
    first, second = 1 + ABLATE.index(a), 1 + ABLATE.index(b)
    return (lambda r: "; ".join(f"{model} {f.signed(r['cascade-ablations-' + name], first, second, 'kld_mean')} nats of KL"
                                for name, model in (("smollm2", "SmolLM2"), ("mini", "bundled"))),
            lambda r: f.each_of(*(f.below(r["cascade-ablations-" + name], first, second, "kld_mean") for name in ("smollm2", "mini"))))


THINNED = (". One sub-cache is as good as Start+Recent: what four lose, they lose by thinning out the newest 4,096 tokens, of which they "
           "hold 1,024 in a row")

CLAIMS = [
    *(Claim(f"better-than-streaming-{size}", SOURCE, f"At the same size ({size:,}) a cascade's perplexity is lower than Start+Recent's (PG19: "
            "1.2%)", {f"cascade-{size}": SIZES[f"cascade-{size}"]},
            lambda r, size=size: "; ".join(f"`n={n}`: {f.signed(r[f'cascade-{size}'], 1 + i, 0)} nats" for i, n in enumerate((1, 2, 4))) +
            f" against {f.ppl(r[f'cascade-{size}'], 0):.2f}",
            lambda r, size=size: f.below(r[f"cascade-{size}"], 3, 0), "Judged by `n=4`" + (THINNED if size == 4096 else "")) for size in (2048, 4096)),
    Claim("whole-books", SOURCE, "Over whole books a cascade is better than Start+Recent of the same size", whole,
          lambda r: f"`n=4` of 2,048 less Start+Recent: {f.said(f.paired(of_whole(r, 1), of_whole(r, 0)))} nats over {len(r)} books",
          lambda r: f.less(f.paired(of_whole(r, 1), of_whole(r, 0)))),
    Claim("restream", SOURCE, "A cascade of 2,048 predicts what is read again from 4,096 tokens back, where a window of 2,048 has lost it", restream,
          lambda r: "`n=4` less Start+Recent, nats of the tokens read again: " + "; ".join(
              f"{d:,} back {f.said(again_less(r, d))}" for d in DISTANCES),
          lambda r: f.all_of(*(f.less(again_less(r, d)) for d in (3072, 4096))),
          "Judged 3,072 and 4,096 tokens back. Nearer, a window of 2,048 still holds most of what is read again, and a cascade a part of it"),
    Claim("mmlu", SOURCE, "With five long examples (MMLU: history, law) a cascade answers more questions than Start+Recent", MMLU,
          lambda r: "`full`/`streaming`/`cascade` of 512: " + ", ".join(of_subject(r, subject) for subject in SUBJECTS) +
          f"% of {len(correct(r, 0, SUBJECTS[:1]))} questions each" + (": `full` is at chance" if at_chance(r) else ""),
          mmlu_verdict, needs=("mmlu",)),
    Claim("selection", SOURCE, "Choosing tokens by attention is better than dropping whatever is not accepted", ABLATIONS,
          *ablation("n=4", "n=4,select=off")),
    Claim("mean", SOURCE, "The mean over heads is the best reduction: better than the median", ABLATIONS, *ablation("n=4", "n=4,reduce=median")),
    Claim("max", SOURCE, "The mean over heads is the best reduction: better than the maximum", ABLATIONS, *ablation("n=4", "n=4,reduce=max")),
    Claim("independent", SOURCE, "Heads that decide on their own are no better than heads that decide together", ABLATIONS,
          *ablation("n=4", "n=4,heads=independent"),
          "Each head keeps its own heavy tokens"),
    Claim("gamma", SOURCE, "A decay that follows the size (`gamma=auto`) is better than a short one", ABLATIONS, *ablation("n=4", "n=4,gamma=0.9")),
    Claim("accept", SOURCE, "Accepting every second token is better than every fourth, where both caches are full", ACCEPT,
          lambda r: "; ".join(f"{model} {f.said(accepted(r, name, 'nll'))} nats" for name, model in (("smollm2", "SmolLM2"), ("mini", "bundled"))) +
          f" (keeping {f.mean(r['cascade-accept-smollm2'], 0, 'kept_mean'):.0f} and {f.mean(r['cascade-accept-smollm2'], 1, 'kept_mean'):.0f})",
          lambda r: f.each_of(*(f.less(accepted(r, name, "nll")) for name in ("smollm2", "mini"))) if filled(r) else "open"),
    Claim("more-caches", SOURCE, "Four sub-caches are better than one", ABLATIONS, *ablation("n=4", "n=1"),
          "Four thin out the recent tokens: 128 of 512 are contiguous. The bundled model uses those most "
          "([ablations](policies/evidence.md#ablations))"),
]
