"""Willette et al., Cascading KV Cache (arXiv 2406.17808)."""
import figures as f
from claim import Claim
from lazy_pruning import kv

SOURCE = "Cascade"
SIZES = {f"cascade-{size}": ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--tokens", 24576, "--skip", 16384, "--chunk", 256, "--json",
                             *kv(f"streaming:sinks=4,window={size}", *(f"cascade:size={size},n={n}" for n in (1, 2, 4)))]
         for size in (2048, 4096)}
ABLATE = ("n=4", "n=4,accept=3", "n=4,accept=4", "n=4,gamma=0.9", "n=4,gamma=0.999", "n=4,reduce=max", "n=4,reduce=median", "n=4,select=off",
          "n=4,heads=independent", "n=1", "n=2", "n=8")
ABLATIONS = {f"cascade-ablations-{name}": ["eval", "ppl", "-m", model, "-f", "{books}", "--tokens", 8192, "--skip", 4096, "--chunk", chunk,
                                           "--compare-full", "--json",
                                           *kv("streaming:sinks=4,window=512", *(f"cascade:size=512,{a}" for a in ABLATE))]
             for name, model, chunk in (("smollm2", "{model}", 32), ("mini", "{mini}", 32))}
RESTREAM = {"cascade-restream": ["eval", "restream", "-m", "{model}", "-f", "{books}/hard-times.txt", "--fill", 7168, "--distances",
                                 "512,1024,2048,3072,4096", "--json",
                                 *kv("streaming:sinks=4,window=2048", *(f"cascade:size=2048,n={n}" for n in (1, 2, 4)))]}


def ablation(a, b):
    """Compares two variants on both models; a is expected to be nearer to the full cache."""
    first, second = 1 + ABLATE.index(a), 1 + ABLATE.index(b)
    return (lambda r: "; ".join(f"{model} {f.signed(r['cascade-ablations-' + name], first, second, 'kld_mean')} nats of KL"
                                for name, model in (("smollm2", "SmolLM2"), ("mini", "bundled"))),
            lambda r: f.all_of(*(f.below(r["cascade-ablations-" + name], first, second, "kld_mean") for name in ("smollm2", "mini"))))


CLAIMS = [
    *(Claim(f"better-than-streaming-{size}", SOURCE, f"At the same size ({size:,}) a cascade's perplexity is lower than Start+Recent's (PG19: "
            "1.2%)", {f"cascade-{size}": SIZES[f"cascade-{size}"]},
            lambda r, size=size: "; ".join(f"`n={n}`: {f.signed(r[f'cascade-{size}'], 1 + i, 0)} nats" for i, n in enumerate((1, 2, 4))) +
            f" against {f.ppl(r[f'cascade-{size}'], 0):.2f}",
            lambda r, size=size: f.below(r[f"cascade-{size}"], 3, 0)) for size in (2048, 4096)),
    Claim("selection", SOURCE, "Choosing tokens by attention is better than dropping whatever is not accepted", ABLATIONS,
          *ablation("n=4", "n=4,select=off")),
    Claim("mean", SOURCE, "The mean over heads is the best reduction: better than the median", ABLATIONS, *ablation("n=4", "n=4,reduce=median")),
    Claim("max", SOURCE, "The mean over heads is the best reduction: better than the maximum", ABLATIONS, *ablation("n=4", "n=4,reduce=max")),
    Claim("independent", SOURCE, "Heads that decide on their own are no better than heads that decide together", ABLATIONS,
          *ablation("n=4", "n=4,heads=independent")),
    Claim("gamma", SOURCE, "A decay that follows the size (`gamma=auto`) is better than a short one", ABLATIONS, *ablation("n=4", "n=4,gamma=0.9")),
    Claim("accept", SOURCE, "Accepting every second token is better than every fourth", ABLATIONS, *ablation("n=4", "n=4,accept=4")),
    Claim("more-caches", SOURCE, "Four sub-caches are better than one", ABLATIONS, *ablation("n=4", "n=1")),
]
