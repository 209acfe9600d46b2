"""SyncKV: A Syncopated Scheduling Approach to KV Cache Compression (under review)."""
import statistics

import figures as f
from claim import Claim
from lazy_pruning import kv

SOURCE = "SyncKV"
VARIANTS = ("synckv:mem=50%", "synckv:mem=50%,static=1", "synckv:mem=50%,static=0", "synckv:mem=50%,stride=1", "synckv:mem=50%,stride=10",
            "quest:budget=1792", "snapkv:budget=1792", "cake:budget=1792", "synckv:mem=70%", "synckv:mem=70%,reps=2")
QUALITY = {"synckv-quality": ["eval", "ppl", "-m", "{model}", "-f", "{books}", "--window", 4096, "--windows", 1, "--prefill", 3584, "--score", "all",
                              "--parallel", 10, "--compare-full", "--json", *kv(*VARIANTS)]}


def needle(values):
    """64 trials, 16 in each of four books, each with a fact and a depth of its own."""
    return {f"synckv-needle-{book}": ["eval", "tasks", "needle", "-m", "{model}", "-f", f"{{books}}/{book}.txt", "--tokens", 2048,
                                      "--count", 16, "--seed", 1 + number, "--json",
                                      *kv("full", "synckv:mem=50%", "quest:budget=1024", "snapkv:budget=1024", "cake:budget=1024")]
            for number, book in enumerate(f.books(values)[:4])}


SPEED = {"synckv-speed": ["bench", "-m", "{model}", "--prefill", 0, "--decode", 64, "--depth", 7168, "--repeat", 5, "--json",
                          *kv("full", "synckv:mem=50%", "synckv:mem=50%,static=1", "quest:budget=3584")]}
DRIFT = {"synckv-drift": ["inspect", "-m", "{model}", "-f", "{books}/hard-times.txt", "--tokens", 2048, "--prefill", 1024, "--top", 64, "--json"]}


TASKS = {"synckv-tasks": ["eval", "tasks", "niah_multikey_1", "niah_multiquery", "kv_retrieval", "vt", "copying", "-m", "{model}", "--tokens", 1024,
                          "--count", 32, "--json", *kv("full", "synckv:mem=50%", "quest:budget=512", "snapkv:budget=512", "cake:budget=512")]}


def scores(r, policy):
    """Returns the score of every question of every task."""
    return [next(iter(question["scores"].values())) for cell in r["synckv-tasks"]["cells"] if cell["policy"].split(":")[0] == policy
            for question in cell["questions"]]


def layer_means(r, figure):
    found = [figure(layer) for layer in r["synckv-drift"]["layers"]]
    return [x for x in found if x is not None]


def at_lag(r, lag, curve="locality"):
    return statistics.fmean(layer_means(r, lambda layer: layer[curve][r["synckv-drift"]["lags"].index(lag)]))


def between_heads(layer):
    """Returns the mean overlap of two different KV heads' top sets."""
    rows = layer["head_similarity"]
    return statistics.fmean(rows[i][j] for i in range(len(rows)) for j in range(i))


def follows(r):
    """Says what the policy loses where it chooses at every step, and what follows from that."""
    return (f"Choosing at every step leaves {f.mean(r['synckv-quality'], 3, 'kld_mean'):.4f} nats: two of three KV heads read a quarter of the "
            "tokens, which the third one chooses. Their top sets overlap by half (`heads-alike`)")



def nearer(a, b):
    return (lambda r: f"{f.signed(r['synckv-quality'], a, b, 'kld_mean')} nats of KL ({f.mean(r['synckv-quality'], a, 'kld_mean'):.4f} and "
                      f"{f.mean(r['synckv-quality'], b, 'kld_mean'):.4f})",
            lambda r: f.below(r["synckv-quality"], a, b, "kld_mean"))


def found(r, i):
    """Returns whether the policy with number i finds each trial's fact."""
    return [next(iter(question["scores"].values())) for book in r.values() for question in book["cells"][i]["questions"]]


def exact(r, i):
    return 100 * statistics.fmean(found(r, i))


def ratio(r):
    return times(r, 1)


def times(r, i):
    """Returns how many times as fast as the full cache the policy with number i decodes."""
    speeds = [x["tokens_per_s"] for x in r["synckv-speed"]["figures"]]
    return speeds[i] / speeds[0]


CLAIMS = [
    Claim("anticipation", SOURCE, "Choosing again every few steps is better than once (48.12 against 47.75)", QUALITY, *nearer(0, 1)),
    Claim("suspension", SOURCE, "Choosing at every step is hardly better than every fifth (48.50 against 48.12)", QUALITY,
          nearer(3, 0)[0], lambda r: f.alike(r["synckv-quality"], 3, 0, 0.01, "kld_mean")),
    Claim("stride-10", SOURCE, "A stride of ten is worse than five (47.62 against 48.12)", QUALITY, *nearer(0, 4)),
    Claim("representatives", SOURCE, "At the same memory two representatives are better than one (48.12 and 47.86; three 47.63)", QUALITY,
          *nearer(9, 8), "With three KV heads a second representative leaves the third head a tenth of the tokens at `mem=70%`, in place of 55%"),
    Claim("quest", SOURCE, "Reading equally many tokens SyncKV is better than Quest", QUALITY, *nearer(0, 5), follows),
    Claim("snapkv", SOURCE, "Reading equally many tokens SyncKV is better than SnapKV", QUALITY, *nearer(0, 6), "As for `quest`"),
    Claim("cake", SOURCE, "Reading equally many tokens SyncKV is better than CAKE", QUALITY, *nearer(0, 7), "As for `quest`"),
    Claim("needle", SOURCE, "A fact is found in 98.9% of texts at half the memory", needle,
          lambda r: ", ".join(f"`{p}` {exact(r, i):.0f}%" for i, p in enumerate(("full", "synckv", "quest", "snapkv", "cake"))) +
          f" of {len(found(r, 0))} trials in four books",
          lambda r: "open" if exact(r, 0) < 90 else "agrees" if exact(r, 1) >= 95 else "disagrees"),
    Claim("decode-speed", SOURCE, "Decoding is 1.25 times as fast as with the full cache at 128K", SPEED,
          lambda r: f"{ratio(r):.2f} times at 7,168 tokens, reading half", lambda r: "agrees" if ratio(r) > 1.15 else "disagrees",
          lambda r: f"With one choice for the whole answer decoding is {times(r, 2):.2f} times as fast"),
    Claim("drift", SOURCE, "After some 50 steps 30% of a head's top set is still in it (Fig. 2a)", DRIFT,
          lambda r: f"{100 * at_lag(r, 64):.0f}% after 64 steps, {100 * at_lag(r, 64, 'by_chance'):.0f}% by chance (sets of 64, mean of layers)",
          lambda r: "agrees" if abs(at_lag(r, 64) - 0.3) < 0.1 and at_lag(r, 64) > 2 * at_lag(r, 64, "by_chance") else "disagrees"),
    Claim("local", SOURCE, "Steps near each other attend to the same tokens, so a choice holds for a few steps (Fig. 2b)", DRIFT,
          lambda r: ", ".join(f"{lag}: {100 * at_lag(r, lag):.0f}%" for lag in (1, 2, 4, 8, 16, 64)) + " of the set, by steps between",
          lambda r: "agrees" if at_lag(r, 4) > 0.8 * at_lag(r, 1) and at_lag(r, 4) > 1.5 * at_lag(r, 64) else "disagrees"),
    Claim("heads-alike", SOURCE, "Some heads of a layer attend alike, and how much differs between layers (Fig. 2c)", DRIFT,
          lambda r: "overlap of two KV heads' sets by layer: {:.2f} to {:.2f}, mean {:.2f}".format(
              min(layer_means(r, between_heads)), max(layer_means(r, between_heads)), statistics.fmean(layer_means(r, between_heads))),
          lambda r: "agrees" if max(layer_means(r, between_heads)) > min(layer_means(r, between_heads)) + 0.2 else "disagrees"),
    Claim("tasks", SOURCE, "On tasks at half the memory SyncKV is better than Quest, SnapKV and CAKE (Tables 1 to 4)", TASKS,
          lambda r: ", ".join(f"`{p}` {100 * statistics.fmean(scores(r, p)):.0f}%" for p in ("full", "synckv", "quest", "snapkv", "cake")) +
          f" of {len(scores(r, 'full'))} questions on generated tasks of 1,024 tokens",
          lambda r: f.all_of(*(f.less(f.paired(scores(r, p), scores(r, "synckv"))) for p in ("quest", "snapkv", "cake"))), "As for `quest`"),
]
