"""What each retention policy keeps, written a second time: slow, literal, sharing nothing with the engine.

oracle.py --policy SPEC --trace FILE.npy [--prefill P [--chunk C]] [--kv-heads N] [--json]

A trace is float32 [layers, heads, T, T], row t a softmax over tokens 0 ... t. A *lane* is what decides for itself: a
layer, or one KV head of a layer where the policy works per KV head. All arithmetic is float64; shares and rounding of
decimal options are exact fractions.

Where the definitions leave room, the reading is:
- kept_* and prunes count per token, in a prompt chunk too, where tokens are inserted and pruned one at a time.
- prunes: the steps at which a layer (any of its lanes) dropped at least one token, the one just inserted included.
- kept_mean and kept_max of a layer with several lanes: the mean and the maximum over lanes.
- The first `sinks` and last `recent` are counted among what the cache holds, not by id.
- A share of the tokens seen: when token i is inserted, i + 1 tokens have been seen, in a chunk too.
- Protected tokens stay when a share of the tokens seen is less than they are.
- A tie in cascade's mu[x] > mu[y] evicts x, as the algorithm is printed, although x is the younger.
- cake: as its published code, which the definitions give precedence: entropies and variances are summed over the heads,
  the variance is the sample's, a layer's share is floored, and what is left over goes to the layers that have room.
- pyramidkv with a single layer is snapkv.
- a+b: both observe from the first token on; a prunes once, when the prompt ends, and then has no more say; b prunes
  only for tokens behind the prompt, in lanes of a. A cascade cannot be a part: it has no selection apart from its
  sub-caches.
- every=0 never prunes, in every policy that has it.
- A row with no weight on what is retained is seen as zeros.
"""

import argparse
import json
import math
import sys

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed")
    sys.exit(77)

from policies import POLICIES, Cascade, SpecError

# ---- specs and composition ------------------------------------------------------------------------------------------


def parse_part(text):
    name, _, rest = text.partition(":")
    if name not in POLICIES:
        raise SpecError(f"no policy '{name}'; there are {', '.join(POLICIES)}")
    policy = POLICIES[name]
    known = policy.options
    given = {}
    for pair in rest.split(",") if rest else []:
        key, equals, value = pair.partition("=")
        if not equals or key not in known:
            raise SpecError(f"'{pair}': {name} takes {', '.join(known) or 'no options'}")
        given[key] = value
    texts = {key: given.get(key, default) for key, (_, default) in known.items()}
    options = {key: None if value is None else known[key][0](value) for key, value in texts.items()}
    policy.check(options, given)
    return policy, options


class Composed:
    """a+b in one lane."""

    def __init__(self, a, b):
        self.a, self.b = a, b

    def observe(self, t, mass, in_prompt):
        self.a.observe(t, mass, in_prompt)
        self.b.observe(t, mass, in_prompt)

    def insert(self, ids, t, in_prompt):
        return ids + [t] if in_prompt else self.b.insert(ids, t, in_prompt)

    def end_prompt(self, ids, t):
        return self.a.prune_as_first(ids, t)


class Plan:
    """A parsed spec: makes lanes, and lets the layers divide budgets."""

    def __init__(self, spec):
        parts = [parse_part(part) for part in spec.split("+")]
        if len(parts) > 2:
            raise SpecError("at most two policies can be combined")
        if len(parts) == 2 and Cascade in (parts[0][0], parts[1][0]):
            raise SpecError("cascade cannot be combined")
        self.parts = parts
        self.per_kv_head = parts[0][0].per_kv_head
        self.one_at_a_time = len(parts) == 1 and parts[0][0].one_at_a_time

    def lane(self, tokens):
        made = [policy(options, tokens) for policy, options in self.parts]
        return made[0] if len(made) == 1 else Composed(*made)

    def allot(self, layers):
        first = [[lane.policy.a if len(self.parts) == 2 else lane.policy for lane in lanes] for lanes in layers]
        self.parts[0][0].allot(first)


# ---- the driver -----------------------------------------------------------------------------------------------------


class Run:
    """One lane's retained set and what is counted of it."""

    def __init__(self, policy, heads):
        self.policy, self.heads = policy, heads
        self.ids = []
        self.kept = []
        self.pruned = []  # per step
        self.recall = []  # per step: one per head

    def forward(self, rows, start, stop, prompt):
        """rows: [heads, T, T] of this lane. Observes tokens start ... stop - 1, seen in one forward pass."""
        for i in range(start, stop):
            seen = self.ids + list(range(start, i + 1))
            row = rows[:, i, seen].astype(np.float64)
            total = row.sum(axis=1)
            self.recall.append(total)
            mass = np.zeros((len(rows), rows.shape[2]))
            mass[:, seen] = row / np.where(total > 0, total, 1)[:, None]
            self.policy.observe(i, mass, i < prompt)

    def keep(self, start, stop, prompt):
        for i in range(start, stop):
            before = len(self.ids)
            self.ids = self.policy.insert(self.ids, i, i < prompt)
            if i == prompt - 1:
                self.ids = self.policy.end_prompt(self.ids, i)
            self.kept.append(len(self.ids))
            self.pruned.append(len(self.ids) < before + 1)


def passes(tokens, prompt, chunk):
    """(start, stop) of each forward pass."""
    step = chunk if chunk else max(prompt, 1)
    in_prompt = [(start, min(start + step, prompt)) for start in range(0, prompt, step)]
    return in_prompt + [(t, t + 1) for t in range(prompt, tokens)]


def summary(lanes):
    return {
        "kept_mean": math.fsum(k for lane in lanes for k in lane.kept) / sum(len(lane.kept) for lane in lanes),
        "kept_max": max(max(lane.kept) for lane in lanes),
        "recall": math.fsum(float(x) for lane in lanes for step in lane.recall for x in step)
        / sum(len(step) for lane in lanes for step in lane.recall),
        "prunes": sum(any(step) for step in zip(*(lane.pruned for lane in lanes))),
    }


def replay(spec, trace, prefill=0, chunk=None, kv_heads=None):
    plan = Plan(spec)
    layers, heads, tokens, _ = trace.shape
    if prefill > tokens:
        raise SpecError("the prompt is longer than the trace")
    if kv_heads is not None and (kv_heads < 1 or heads % kv_heads):
        raise SpecError("KV heads must divide the heads")
    count = (kv_heads or heads) if plan.per_kv_head else 1
    groups = np.split(np.arange(heads), count)
    runs = [[Run(plan.lane(tokens), group) for group in groups] for _ in range(layers)]
    prompt = 0 if plan.one_at_a_time else prefill
    for start, stop in passes(tokens, prompt, chunk):
        for layer, lanes in enumerate(runs):
            for lane in lanes:
                lane.forward(trace[layer, lane.heads], start, stop, prompt)
        if stop == prompt:
            plan.allot(runs)
        for lanes in runs:
            for lane in lanes:
                lane.keep(start, stop, prompt)
    result = []
    for layer, lanes in enumerate(runs):
        entry = {"layer": layer}
        if plan.per_kv_head:
            entry["heads"] = [{"final": lane.ids, **summary([lane])} for lane in lanes]
        else:
            entry["final"] = lanes[0].ids
        result.append({**entry, **summary(lanes)})
    return {"layers": result}


def main():
    parser = argparse.ArgumentParser(description="Replays recorded attention through a retention policy.")
    parser.add_argument("--policy", required=True)
    parser.add_argument("--trace", required=True)
    parser.add_argument("--prefill", type=int, default=0)
    parser.add_argument("--chunk", type=int)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--json", action="store_true", help="the only output there is")
    args = parser.parse_args()
    try:
        result = replay(args.policy, np.load(args.trace), args.prefill, args.chunk, args.kv_heads)
    except SpecError as error:
        print(f"oracle: {error}", file=sys.stderr)
        return 2
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
