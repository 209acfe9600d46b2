"""What can be worked out about the policies by hand, held against the oracle."""

import math

import cases
import numpy as np
import policies
from oracle import parse_part, replay
from policies import SpecError

FAILURES = []


def check(condition, what):
    if not condition:
        FAILURES.append(what)


def finals(result):
    return [lane["final"] for layer in result["layers"] for lane in layer.get("heads", [layer])]


def rows(*heads):
    """One layer from the lower triangles of its heads."""
    tokens = len(heads[0])
    trace = np.zeros((1, len(heads), tokens, tokens), np.float32)
    for h, triangle in enumerate(heads):
        for t, row in enumerate(triangle):
            trace[0, h, t, : t + 1] = row
    return trace


def one(spec, trace, **how):
    return replay(spec, trace, **how)["layers"][0]


# ---- by construction ------------------------------------------------------------------------------------------------


def without_attention(traces):
    trace = traces["mixed"]
    tokens = trace.shape[2]
    got = one("window:size=20", trace)
    check(got["final"] == list(range(140, 160)), "window keeps the last")
    check(got["prunes"] == 140 and got["kept_max"] == 20, "window drops one at a time")
    check(got["kept_mean"] == (sum(range(1, 21)) + 140 * 20) / 160, "window's mean")
    seen = sum(trace[0, :, t, max(0, t - 20) : t + 1].sum(dtype=np.float64) for t in range(tokens)) / (4 * tokens)
    check(math.isclose(got["recall"], seen), "window's forward pass sees the token besides the 20 retained")

    got = one("streaming:sinks=2,window=18,every=16", trace)
    # 36 tokens are the first that trigger, then every 16th: 36, 52, ... 148 of 160.
    check(got["final"] == [0, 1, *range(130, 160)], "lazy pruning")
    check(got["kept_max"] == 35 and got["prunes"] == 8, "lazy pruning's trigger")
    # W = 48 - 3 - 5 - 4 - 3 = 33, target 36, trigger at 36 + 3 + 5.
    got = one("streaming:sinks=3,cap=48,slack=5,overlap=4,refresh=3,every=3", trace)
    check(got["kept_max"] == 43, "knobs under a cap")
    check(finals(replay("streaming:cap=32", trace)) == finals(replay("streaming:window=28", trace)), "cap")
    # From 34 tokens on (6 above the target of 28), 2 go and 1 comes: 32, 33, 34 -> 32, ... so the cache stays near 34.
    got = one("streaming:sinks=4,window=24,every=6,max_drop=2", trace)
    check(got["kept_max"] == 33 and got["prunes"] == 64, "max_drop leaves tokens above the target")
    for spec in ("window:size=20", "streaming:sinks=2,window=18,every=7"):
        check(replay(spec, trace) == replay(spec, trace, prefill=100, chunk=32), f"chunks change {spec}")


def cascade(traces):
    uniform = traces["uniform"][..., :7, :7]
    # Two sub-caches of two tokens; the second accepts at even steps: worked out on paper.
    got = one("cascade:size=4,n=2,sinks=0,select=off", uniform)
    check(got["final"] == [2, 4, 5, 6], "cascade without selection")
    check(one("cascade:size=4,n=2,sinks=1,select=off", uniform)["final"] == [0, 1, 3, 5, 6], "a sink stops the clock")
    # Step 3 offers 1 to [0]: 1 has the larger weight and replaces 0. Step 5 offers 3 to [1, 2], smaller: 3 goes.
    weights = [[1], [0.5, 0.5], [0.1, 0.5, 0.4], [0.1, 0.6, 0.2, 0.1], [0.1, 0.3, 0.5, 0, 0.1]]
    weights += [[0, 0.3, 0.5, 0.1, 0, 0.1]]
    spec = "cascade:size=4,n=2,sinks=0,gamma=0"
    check(one(spec, rows(weights[:4]))["final"] == [1, 2, 3], "selection takes the stronger")
    check(one(spec, rows(weights))["final"] == [1, 2, 4, 5], "selection drops the weaker")
    for name in ("mixed", "sharp"):
        trace = traces[name]
        plain = finals(replay("streaming:sinks=3,window=24", trace))
        check(finals(replay("cascade:size=24,n=1,sinks=3", trace)) == plain, "one sub-cache is a window")
        check(finals(replay("cascade:size=24,n=4,sinks=3,accept=1", trace)) == plain, "accepting all is a window")
        check(
            finals(replay("cascade:size=24,reduce=sum", trace)) == finals(replay("cascade:size=24", trace)),
            "sum and mean order alike",
        )
    # mu after a step of weight m is (1 - gamma) * m, then decays.
    lane = policies.Cascade(parse_part("cascade:size=8,n=2,gamma=0.75")[1], 2)
    lane.observe(0, np.array([[1.0, 0.0], [1.0, 0.0]]), False)
    lane.observe(1, np.array([[0.5, 0.5], [0.25, 0.75]]), False)
    check(np.allclose(lane.mu, [0.75 * 0.25 + 0.25 * 0.375, 0.25 * 0.625]), "moving average")
    lane = policies.Cascade(parse_part("cascade:size=64,n=4")[1], 2)
    check(math.isclose(lane.gamma**16, 0.01), "gamma=auto leaves a hundredth after size/N steps")
    four = np.array([[0.1], [0.9], [0.2], [0.4]])
    check(math.isclose(policies.reduced(four, "median")[0], 0.3), "median of four")
    check(policies.reduced(four[:3], "median")[0] == 0.2, "median of three")


def heavy_hitters(traces):
    mixed = traces["mixed"]
    check(
        finals(replay("h2o:budget=24,recent=24", mixed)) == finals(replay("window:size=24", mixed)),
        "h2o that protects its whole budget is a window",
    )
    got = one("h2o:budget=40,recent=10", mixed)
    check(got["kept_mean"] == (sum(range(1, 41)) + 120 * 40) / 160 and got["prunes"] == 120, "h2o fills its budget")
    # Scores before the drop at step 3: 1.5, 0.75, 0.75 (restricted and renormalised rows), 1 is older than 2.
    weights = [[1], [0.5, 0.5], [0, 0.25, 0.75], [0.5, 0.25, 0.125, 0.125]]
    check(one("h2o:budget=2,recent=1", rows(weights[:3]))["final"] == [0, 2], "h2o's sum")
    # Token 1 went; row 3 is 0.5, 0.125, 0.125 of 0.75: scores 1.5 + 2/3, 0.75 + 1/6, 1/6.
    got = one("h2o:budget=2,recent=0", rows(weights))
    check(got["final"] == [0, 2], "h2o goes on with what it kept")
    check(math.isclose(got["recall"], (1 + 1 + 1 + 0.75) / 4), "recall is what was still there")
    check(one("h2o:budget=50%,recent=0", rows([[1], [0, 1], [0, 0, 1]]))["final"] == [1, 2], "half of three is two")
    # Ties: the younger stays.
    equal = rows([[1], [1, 0], [1, 0, 0], [1, 0, 0, 0]])
    check(one("h2o:budget=2,recent=0", equal)["final"] == [0, 3], "the younger wins")
    check(one("tova:budget=3", equal)["final"] == [0, 2, 3], "the younger wins in tova")
    # tova forgets what was heavy before; the mean over heads decides.
    a = [[1], [0.5, 0.5], [0.125, 0.5, 0.375]]
    b = [[1], [0.5, 0.5], [0.5, 0.25, 0.25]]
    check(one("tova:budget=2", rows(a))["final"] == [1, 2], "tova's row")
    check(one("tova:budget=2", rows(a, b))["final"] == [1, 2], "tova's mean")  # 0.3125 0.375 0.3125, younger
    check(one("tova:budget=1", rows([[1], [0.75, 0.25]]))["final"] == [0], "tova may drop the token itself")
    check(one("tova:budget=1,every=2", rows(b[:2]))["final"] == [0, 1], "one above is not two")


def lethe(traces):
    flat = traces["flat"]
    got = one("lethe:start=8", flat)
    check(got["prunes"] == 0, "no drop is found in flat attention")
    lane = policies.Lethe(parse_part("lethe:start=8,max=20,recent=0.25,sinks=1")[1], 64)
    limits = []
    lane.score[:] = 1.0
    ids = []
    for t in range(22):
        ids = lane.insert(ids, t, False)
        limits.append((len(ids), lane.limit))
    check(limits[7] == (8, 8) and limits[8] == (9, 16), "the limit doubles")
    check(limits[16] == (17, 20), "the cap holds the limit")
    # The 21st token is one too many: sink 0, the last 5 of 21, the youngest of the rest up to 10.
    check(limits[20] == (10, 20) and ids == [0, *range(12, 22)], "the cap rule")
    lane = policies.Lethe(parse_part("lethe:start=8,tau=10,recent=0.25,sinks=1,segments=5")[1], 64)
    lane.score[:10] = [1, 1, 30, 1, 25, 20, 1, 1, 1, 1]
    lane.limit = 9
    # Cuts of 10 tokens at 2, 4, 6, 8: 30/20 is no drop, 30/1 at cut 4 is.
    check(lane.prune(list(range(10)), 9) == [0, 2, 4, 5, 8, 9], "three heavy, the youngest light, a sink, two recent")
    check(lane.limit == 9, "4 + 2 do not raise the limit")
    lane.limit = 4
    lane.prune(list(range(10)), 9)
    check(lane.limit == 6, "4 + 2 raise the limit")
    # One step for the prompt: no decay in it.
    steps = rows([[1], [0.5, 0.5], [0.25, 0.25, 0.5]])[0]
    lane = policies.Lethe(parse_part("lethe:gamma=0.5")[1], 3)
    for t in range(3):
        lane.observe(t, steps[:, t].astype(np.float64), t < 2)
    check(np.allclose(lane.score, [0.5 * 1.5 + 0.25, 0.5 * 0.5 + 0.25, 0.5]), "decay only while decoding")


def prefill(traces):
    # Window 1, no pooling: the last row decides; two heads in a group are averaged.
    a = [[1], [0.5, 0.5], [0.125, 0.5, 0.375], [0.125, 0.5, 0.25, 0.125]]
    b = [[1], [0.5, 0.5], [0.5, 0.25, 0.25], [0.75, 0, 0.125, 0.125]]
    spec = "snapkv:budget=2,window=1,kernel=1"
    check(finals(replay(spec, rows(a, b), prefill=4)) == [[1, 3], [0, 3]], "each KV head for itself")
    check(finals(replay(spec, rows(a, b), prefill=4, kv_heads=1)) == [[0, 3]], "the mean of a group")
    check(finals(replay(spec, rows(a, b), prefill=3)) == [[1, 2, 3], [0, 2, 3]], "what follows the prompt stays")
    check(policies.pooled([3.0, 0.0, 0.0, 6.0], 3, "avg") == [1.0, 1.0, 2.0, 2.0], "zero-padded pooling")
    check(policies.pooled([3.0, 0.0, 0.0, 6.0], 3, "max") == [3.0, 3.0, 6.0, 6.0], "maximum pooling")
    # b = 100, min = 5, max = 195: 195, 131.67, 68.33, 5, and the window of 32.
    lane = policies.PyramidKV(parse_part("pyramidkv:budget=132,window=32")[1], 8)
    lane.prompt = 1000
    check([lane.layer_budget(layer, 4) for layer in range(4)] == [195, 132, 68, 5], "pyramid")
    lane.prompt = 182  # max = 150, min = 50
    check([lane.layer_budget(layer, 3) for layer in range(3)] == [150, 100, 50], "pyramid of a short prompt")
    lane = policies.PyramidKV(parse_part("pyramidkv:budget=73,window=32,beta=2")[1], 8)
    lane.prompt = 1000  # 61.5 and 20.5
    check([lane.layer_budget(layer, 2) for layer in range(2)] == [62, 21], "half up")
    snap = finals(replay("snapkv:budget=48,window=16", traces["mixed"], prefill=120))
    for beta in (0.75, 1):  # max < min, max = min
        pyramid = replay(f"pyramidkv:budget=48,window=16,beta={beta}", traces["mixed"], prefill=120)
        check(finals(pyramid) == snap, "a pyramid without slope is snapkv")
    twice = np.repeat(traces["mixed"][2:], 2, axis=0)
    got = finals(replay("cake:budget=48,window=16", twice, prefill=160, kv_heads=2))
    check(got[:2] == got[2:] and all(47 <= len(ids) <= 48 for ids in got), "like layers share like")
    lane = policies.Cake(parse_part("cake:window=2,tau1=1,tau2=1,gamma=2")[1], 4)
    for t, row in enumerate(([1, 0, 0, 0], [0.5, 0.5, 0, 0], [0.25, 0.5, 0.25, 0], [0.5, 0.25, 0, 0.25])):
        lane.observe(t, np.array([row]), True)
    # Rows 2 and 3 on tokens 0 and 1: means 0.375, sample variances 1/32.
    entropy = -(0.25 * math.log(0.25) + 0.5 * math.log(0.5))
    check(np.allclose(lane.score(), [0.375 + 2 / 32] * 2), "cake's score")
    check(math.isclose(policies.Cake.preference([lane]), 2 * entropy * 2 / 32), "cake's preference")


# ---- one against another --------------------------------------------------------------------------------------------


def chunks(traces):
    for spec in (
        "h2o:budget=30,recent=8,every=3",
        "tova:budget=25%",
        "cascade:size=32",
        "lethe:start=24,tau=8,gamma=1",
    ):
        trace = traces["mixed"]
        alone = replay(spec, trace)
        check(replay(spec, trace, prefill=110, chunk=1) == alone, f"chunks of one token: {spec}")
        check(replay(spec, trace, prefill=110, chunk=40) != alone, f"the chunk is part of {spec}")


def compositions(traces):
    trace = traces["mixed"]
    a, b = "snapkv:budget=48,window=16", "h2o:budget=40,recent=10"
    both = f"{a}+{b}"
    check(finals(replay(both, trace, prefill=160)) == finals(replay(a, trace, prefill=160)), "a prompt is a's alone")
    check(finals(replay(both, trace, kv_heads=1)) == finals(replay(b, trace)), "without a prompt b is alone")
    check(finals(replay(f"full+{b}", trace)) == finals(replay(b, trace)), "full adds nothing")
    kept = [set(ids) for ids in finals(replay(a, trace, prefill=100))]
    check(
        all(set(ids) <= more for ids, more in zip(finals(replay(both, trace, prefill=100)), kept)),
        "what a dropped is gone",
    )
    check(
        finals(replay(f"{a}+window:size=1000", trace, prefill=100)) == finals(replay(a, trace, prefill=100)),
        "a wide window adds nothing",
    )


def refusals(traces):
    for spec, _ in cases.REFUSED:
        try:
            replay(spec, traces["uniform"])
            check(False, f"{spec} is refused")
        except SpecError:
            pass


def turned(trace, kv_heads):
    """The heads of each group in reverse: the same in exact arithmetic for all but the order of additions."""
    layers, heads, tokens, _ = trace.shape
    groups = trace.reshape(layers, kv_heads, heads // kv_heads, tokens, tokens)
    return groups[:, :, ::-1].reshape(trace.shape)


def cases_are_sound(traces):
    """Cases drop what they should, and none hangs on the order in which floating-point numbers were added."""
    ties = 0
    for case in cases.CASES:
        trace = traces[case.trace]
        how = {"prefill": case.prefill, "chunk": case.chunk, "kv_heads": case.kv_heads}
        policies.delicacy = policies.Delicacy()
        got = replay(case.policy, trace, **how)
        ties += policies.delicacy.ties > 0
        check(policies.delicacy.margin > 1e-9, f"{case}: a decision hangs on rounding ({policies.delicacy.margin:.1e})")
        dropped = any(layer["prunes"] for layer in got["layers"])
        check(dropped != case.whole, f"{case}: {'drops something' if case.whole else 'drops nothing'}")
        if case.whole:
            check(all(ids == list(range(trace.shape[2])) for ids in finals(got)), f"{case}: keeps everything")
        check(all(0 < layer["recall"] < 1 + 1e-6 for layer in got["layers"]), f"{case}: recall")
        per_head = "heads" in got["layers"][0]
        groups = (case.kv_heads or trace.shape[1]) if per_head else 1
        check(finals(replay(case.policy, turned(trace, groups), **how)) == finals(got), f"{case}: order of heads")
    check(ties >= 10, "ties occur")
    check(len({str(case) for case in cases.CASES}) == len(cases.CASES), "no case twice")
    print(f"{len(cases.CASES)} cases, {ties} of them with ties")


def run():
    traces = cases.traces()
    for facts in (
        without_attention, cascade, heavy_hitters, lethe, prefill, chunks, compositions, refusals, cases_are_sound,
    ):
        facts(traces)
    for failure in FAILURES:
        print("not so:", failure)
    return 1 if FAILURES else 0
