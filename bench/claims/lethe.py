"""Zeng et al., Lethe."""
import figures as f
from claim import Claim
from lazy_pruning import kv

SOURCE = "Lethe"
WINDOWS = ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--window", 2048, "--windows", 1, "--chunk", 1, "--parallel", 10, "--compare-full", "--json"]
TAUS = (20, 100, 400, 1000, 10000)
TAU = {"lethe-tau": [*WINDOWS, *kv(*(f"lethe:tau={t},start=128" for t in TAUS))]}


def equal(found):
    """The command that compares policies at the tokens that lethe kept on average."""
    kept = round(f.mean(found["lethe-tau"], 2, "kept_mean"))
    return [*WINDOWS, *kv("lethe:tau=400,start=128", f"h2o:budget={kept},sinks=4", f"streaming:cap={kept}", f"tova:budget={kept}")]


EQUAL = {**TAU, "lethe-equal": equal}
SPEED = {"lethe-speed": ["bench", "-m", "{model}", "--prefill", 0, "--decode", 16, "--depth", 2048, "--batch", "1,8,32", "--repeat", 3, "--json",
                         *kv("full", "lethe:max=512")]}
SPARSITY = {"lethe-sparsity": ["inspect", "-m", "{model}", "-f", "{books}/hard-times.txt", "--tokens", 2048, "--json"],
            "lethe-kept": ["inspect", "-m", "{model}", "-f", "{books}/hard-times.txt", "--tokens", 2048, "--json", "--kv", "lethe:tau=400,start=128"]}
LENGTHS = (1500, 5000, 10000, 20000)
LONG = {f"lethe-long-{n}": ["run", "-m", "{mini}", "-p", "Once upon a time", "-n", n, "--ignore-eos", "--seed", 1, "--json",
                            "--kv", "lethe:start=512"] for n in LENGTHS}
ANSWER = {"lethe-answer": ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--tokens", 4096, "--prefill", 512, "--parallel", 10,
                           "--compare-full", "--json",
                           *kv("full", "full+lethe:tau=400,start=512", "full+lethe:tau=400,start=512,max=1024")]}


def speeds(r, policy, run="lethe-speed"):
    return [x for x in r[run]["figures"] if x["policy"].startswith(policy)]


def by_layer(r, run, figure):
    return [figure(layer) for layer in r[run]["layers"]]


def sparsity(r):
    return by_layer(r, "lethe-sparsity", lambda layer: layer["hoyer_mean"])


def kept_last(r):
    """Returns the tokens that each layer's last queries see."""
    return by_layer(r, "lethe-kept", lambda layer: layer["seen"][-1])


CLAIMS = [
    Claim("tau", SOURCE, "A larger `sparse_ratio` keeps more (the text; equation 4 read literally says the opposite)", TAU,
          lambda r: "; ".join(f"{t}: {f.mean(r['lethe-tau'], i, 'kept_mean'):.0f} tokens, {f.mean(r['lethe-tau'], i, 'kld_mean'):.3f} nats"
                              for i, t in enumerate(TAUS)),
          lambda r: "agrees" if all(f.mean(r["lethe-tau"], i, "kept_mean") <= f.mean(r["lethe-tau"], i + 1, "kept_mean")
                                    for i in range(len(TAUS) - 1)) else "disagrees"),
    Claim("equal-kept", SOURCE, "At equal memory pruning by layer and time is better than H2O and StreamingLLM", EQUAL,
          lambda r: f"KL less H2O's {f.signed(r['lethe-equal'], 0, 1, 'kld_mean')}, less Start+Recent's {f.signed(r['lethe-equal'], 0, 2, 'kld_mean')}",
          lambda r: f.all_of(f.below(r["lethe-equal"], 0, 1, "kld_mean"), f.below(r["lethe-equal"], 0, 2, "kld_mean")),
          "Some layers keep the whole text and others next to nothing (`sparsity`), while the others keep as many in every layer"),
    Claim("throughput", SOURCE, "Throughput rises by up to 2.56 times with the batch, against the full cache", SPEED,
          lambda r: "; ".join(f"batch {a['batch']}: {b['tokens_per_s'] / a['tokens_per_s']:.2f} times, {b['kv_bytes'] / a['kv_bytes']:.2f} of the memory"
                              for a, b in zip(speeds(r, "full"), speeds(r, "lethe"))) + " (2,048 tokens, at most 512 kept: a bound of ours)",
          lambda r: "agrees" if max(b["tokens_per_s"] / a["tokens_per_s"] for a, b in zip(speeds(r, "full"), speeds(r, "lethe"))) > 2.3
          else "disagrees"),
    Claim("sparsity", SOURCE, "Layers differ in how sparse their attention is", SPARSITY,
          lambda r: f"Hoyer's sparsity {min(sparsity(r)):.2f} to {max(sparsity(r)):.2f} by layer; `lethe` keeps {min(kept_last(r)):.0f} to "
                    f"{max(kept_last(r)):.0f} of 2,048 tokens",
          lambda r: "agrees" if max(sparsity(r)) - min(sparsity(r)) > 0.1 and max(kept_last(r)) > 1.5 * min(kept_last(r)) else "disagrees"),
    Claim("long-generation", SOURCE, "Memory and speed stay flat over 1,500 to 20,000 generated tokens", LONG,
          lambda r: "bundled model, `lethe:start=512`: " + "; ".join(
              f"{n:,}: {r[f'lethe-long-{n}']['tokens_per_s']:.0f} tokens/s, at most {r[f'lethe-long-{n}']['kv']['bytes_peak'] / 2**20:.1f} MiB"
              for n in LENGTHS),
          lambda r: "agrees" if r["lethe-long-20000"]["kv"]["bytes_peak"] < 1.5 * r["lethe-long-1500"]["kv"]["bytes_peak"] and
          r["lethe-long-20000"]["tokens_per_s"] > 0.8 * r["lethe-long-1500"]["tokens_per_s"] else "disagrees",
          "Both are flat from 10,000 tokens on"),
    Claim("long-answers", SOURCE, "Answers of thousands of tokens lose little", ANSWER,
          lambda r: "; ".join(f"{f.signed(r['lethe-answer'], i, 0)} nats keeping {f.mean(r['lethe-answer'], i, 'kept_mean'):.0f} of "
                              f"{f.mean(r['lethe-answer'], 0, 'kept_mean'):.0f}" for i in (1, 2)),
          lambda r: f.alike(r["lethe-answer"], 1, 0, 0.02)),
]
