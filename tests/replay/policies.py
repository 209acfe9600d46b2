"""The retention policies of oracle.py, one class each, and their options. All state is of one lane."""

import math
import sys
from collections import deque
from fractions import Fraction

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed")
    sys.exit(77)


class SpecError(ValueError):
    pass


class Delicacy:
    """How near a run came to a decision that the order of floating-point additions could turn."""

    def __init__(self):
        self.margin = math.inf  # smallest relative difference, other than 0, between two numbers that were told apart
        self.ties = 0

    def told_apart(self, x, y):
        if x == y:
            self.ties += 1
        else:
            self.margin = min(self.margin, abs(x - y) / max(abs(x), abs(y)))


delicacy = Delicacy()


# ---- specs ----------------------------------------------------------------------------------------------------------


def whole(low):
    def parse(text):
        if not text.isdigit() or int(text) < low:
            raise SpecError(f"'{text}' is not a whole number from {low} on")
        return int(text)

    return parse


def number(low, high=None, open_low=False):
    def parse(text):
        try:
            value = Fraction(text)
        except ValueError:
            raise SpecError(f"'{text}' is not a number") from None
        if value < low or (open_low and value == low) or (high is not None and value > high):
            raise SpecError(f"{text} is out of range")
        return value

    return parse


def word(*words):
    def parse(text):
        if text not in words:
            raise SpecError(f"'{text}' is none of {', '.join(words)}")
        return text

    return parse


def odd(text):
    if whole(1)(text) % 2 == 0:
        raise SpecError("pooling kernels are odd")
    return int(text)


class Budget:
    """Tokens, or a share of the tokens seen so far, rounded up."""

    def __init__(self, text):
        self.fixed = not text.endswith("%")
        if self.fixed:
            self.value = whole(1)(text)
        else:
            self.value = number(0, 100, open_low=True)(text[:-1]) / 100

    def at(self, seen):
        return self.value if self.fixed else math.ceil(self.value * seen)


def gamma_or_auto(text):
    return text if text == "auto" else number(0, 1)(text)


# ---- what policies share --------------------------------------------------------------------------------------------


def best(candidates, score, count):
    """The `count` candidates with the highest scores; among equals the younger."""
    count = max(count, 0)
    order = sorted(candidates, key=lambda j: (score[j], j), reverse=True)
    if 0 < count < len(order):
        delicacy.told_apart(score[order[count - 1]], score[order[count]])
    return order[:count]


def floor_of_share(share, count):
    exact = math.floor(share * count)
    if exact != math.floor(float(share) * count):
        delicacy.margin = 0.0
    return exact


def last(ids, count):
    return ids[len(ids) - min(count, len(ids)) :]


def reduced(mass, how):
    """Over query heads; mass: [heads, T]."""
    if how == "sum":
        return mass.sum(axis=0)
    if how == "mean":
        return mass.sum(axis=0) / len(mass)
    if how == "max":
        return mass.max(axis=0)
    ordered = np.sort(mass, axis=0)
    middle = len(mass) // 2
    return ordered[middle] if len(mass) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class Lane:
    """State of one policy in one lane. `mass` is dense over all T tokens, zero where the forward pass did not look."""

    per_kv_head = False
    one_at_a_time = False  # Prompt chunks change nothing.
    options = {}

    @classmethod
    def check(cls, options, given):
        pass

    @classmethod
    def allot(cls, layers):
        """At the end of the prompt: lets layers (lists of lanes) divide a budget among them."""

    def __init__(self, options, tokens):
        self.o = options
        self.tokens = tokens

    def observe(self, t, mass, in_prompt):
        pass

    def insert(self, ids, t, in_prompt):
        return self.prune(ids + [t], t)

    def prune(self, ids, t):
        """What stays of `ids` after the step of token t."""
        return ids

    def end_prompt(self, ids, t):
        """t: the last token of the prompt, already in ids."""
        return ids

    def prune_as_first(self, ids, t):
        """As the first part of a composition: the one time that it acts."""
        return self.prune(ids, t)


# ---- policies that do not look at attention -------------------------------------------------------------------------


class Full(Lane):
    pass


class Window(Lane):
    one_at_a_time = True
    options = {"size": (whole(1), None)}

    @classmethod
    def check(cls, options, given):
        if options["size"] is None:
            raise SpecError("window needs size=")

    def prune(self, ids, t):
        return last(ids, self.o["size"])


class Streaming(Lane):
    one_at_a_time = True
    options = {
        "sinks": (whole(0), "4"),
        "window": (whole(1), "2044"),
        "cap": (whole(1), None),
        "every": (whole(0), "1"),
        "slack": (whole(0), "0"),
        "max_drop": (whole(1), None),
        "overlap": (whole(0), "0"),
        "refresh": (whole(0), "0"),
        "realign": (word("frames", "rotate"), "frames"),
    }

    @classmethod
    def check(cls, options, given):
        if options["cap"] is not None:
            if "window" in given:
                raise SpecError("cap is given instead of window")
            options["window"] = options["cap"] - sum(options[key] for key in ("sinks", "slack", "overlap", "refresh"))
            if options["window"] < 1:
                raise SpecError("cap leaves no window")

    def prune(self, ids, t):
        sinks, target = self.o["sinks"], self.o["sinks"] + self.o["window"]
        above = len(ids) - target
        if self.o["every"] == 0 or above < self.o["every"] + self.o["slack"]:
            return ids
        drop = above if self.o["max_drop"] is None else min(above, self.o["max_drop"])
        return ids[:sinks] + ids[sinks + drop :]


# ---- policies that score tokens by attention ------------------------------------------------------------------------


class Cascade(Lane):
    options = {
        "size": (whole(1), "2048"),
        "n": (whole(1), "4"),
        "sinks": (whole(0), "4"),
        "accept": (whole(1), "2"),
        "gamma": (gamma_or_auto, "auto"),
        "reduce": (word("sum", "mean", "max", "median"), "mean"),
        "select": (word("on", "off"), "on"),
        "pos": (word("compact"), "compact"),
    }

    @classmethod
    def check(cls, options, given):
        if options["size"] % options["n"]:
            raise SpecError("n must divide size")

    def __init__(self, options, tokens):
        super().__init__(options, tokens)
        n, size = options["n"], options["size"]
        self.gamma = math.exp(-n * math.log(100) / size) if options["gamma"] == "auto" else float(options["gamma"])
        self.mu = np.zeros(tokens)
        self.sinks = []
        self.sub = [[] for _ in range(n)]  # each oldest first
        self.clock = 0

    def observe(self, t, mass, in_prompt):
        self.mu = self.gamma * self.mu + (1 - self.gamma) * reduced(mass, self.o["reduce"])

    def insert(self, ids, t, in_prompt):
        if len(self.sinks) < self.o["sinks"]:
            self.sinks.append(t)
        else:
            self.offer(t, 0)
            self.clock += 1
        return sorted(self.sinks + [x for sub in self.sub for x in sub])

    def offer(self, x, i):
        if i == len(self.sub):
            return
        sub = self.sub[i]
        if self.clock % self.o["accept"] ** i == 0:
            full = len(sub) == self.o["size"] // self.o["n"]
            sub.append(x)
            if full:
                self.offer(sub.pop(0), i + 1)
        elif not sub:
            sub.append(x)
        elif self.o["select"] == "on":
            delicacy.told_apart(self.mu[x], self.mu[sub[-1]])
            if self.mu[x] > self.mu[sub[-1]]:
                sub[-1] = x


class H2O(Lane):
    options = {
        "budget": (Budget, "1024"),
        "recent": (whole(0), "512"),
        "sinks": (whole(0), "0"),
        "every": (whole(0), "1"),
        "pos": (word("auto", "original", "compact"), "auto"),
    }

    @classmethod
    def check(cls, options, given):
        if options["budget"].fixed and options["sinks"] + options["recent"] > options["budget"].value:
            raise SpecError("sinks + recent is above the budget")

    def __init__(self, options, tokens):
        super().__init__(options, tokens)
        self.score = np.zeros(tokens)

    def observe(self, t, mass, in_prompt):
        self.score = self.score + reduced(mass, "sum")

    def prune(self, ids, t):
        budget = self.o["budget"].at(t + 1)
        if self.o["every"] == 0 or len(ids) - budget < self.o["every"]:
            return ids
        protected = set(ids[: self.o["sinks"]]) | set(last(ids, self.o["recent"]))
        others = [j for j in ids if j not in protected]
        return sorted(protected | set(best(others, self.score, budget - len(protected))))


class Tova(Lane):
    options = {
        "budget": (Budget, "1024"),
        "every": (whole(0), "1"),
        "pos": (word("auto", "original", "compact"), "auto"),
    }

    def __init__(self, options, tokens):
        super().__init__(options, tokens)
        self.rows = {}

    def observe(self, t, mass, in_prompt):
        self.rows[t] = reduced(mass, "mean")

    def prune(self, ids, t):
        row = self.rows[t]
        self.rows = {i: r for i, r in self.rows.items() if i > t}
        budget = self.o["budget"].at(t + 1)
        if self.o["every"] == 0 or len(ids) - budget < self.o["every"]:
            return ids
        return sorted(best(ids, row, budget))


class Lethe(Lane):
    options = {
        "tau": (number(1, open_low=True), "400"),
        "recent": (number(0, 1), "0.3"),
        "sinks": (whole(0), "4"),
        "segments": (whole(2), "10"),
        "gamma": (number(0, 1), "0.98"),
        "start": (whole(1), "512"),
        "max": (whole(1), None),
        "pos": (word("auto", "original", "compact"), "auto"),
    }

    def __init__(self, options, tokens):
        super().__init__(options, tokens)
        self.score = np.zeros(tokens)
        self.limit = options["start"]  # L_evict

    def observe(self, t, mass, in_prompt):
        if not in_prompt:
            self.score = float(self.o["gamma"]) * self.score
        self.score = self.score + reduced(mass, "sum")

    def breakpoint(self, ids):
        """Returns the first cut with a sharp drop, or None."""
        order = best(ids, self.score, len(ids))
        v = [self.score[j] for j in order]
        for d in range(1, self.o["segments"]):
            c = len(ids) * d // self.o["segments"]
            if v[c] == 0:
                return c
            delicacy.told_apart(v[0] / v[c], float(self.o["tau"]))
            if v[0] / v[c] >= float(self.o["tau"]):
                return c
        return None

    def prune(self, ids, t):
        count, most = len(ids), self.o["max"]
        if count <= self.limit:
            return ids
        recent = floor_of_share(self.o["recent"], count)
        protected = set(ids[: self.o["sinks"]]) | set(last(ids, recent))
        c = self.breakpoint(ids)
        if c is not None:
            keep = protected | set(best(ids, self.score, c))
            if most is None or len(keep) < most:
                self.limit = self.capped(max(self.limit, c + recent))
                return sorted(keep)
        elif most is None or count < most:
            self.limit = self.capped(2 * self.limit)
            return ids
        self.limit = most
        others = [j for j in ids if j not in protected]
        return sorted(protected | set(best(others, self.score, most // 2 - len(protected))))

    def capped(self, limit):
        return limit if self.o["max"] is None else min(limit, self.o["max"])


# ---- policies that act when the prompt ends -------------------------------------------------------------------------


def pooled(values, kernel, pool):
    half = kernel // 2
    padded = [0.0] * half + list(values) + [0.0] * half
    around = [padded[j : j + kernel] for j in range(len(values))]
    return [max(a) for a in around] if pool == "max" else [sum(a) / kernel for a in around]


class SnapKV(Lane):
    per_kv_head = True
    options = {
        "budget": (Budget, "1024"),
        "window": (whole(1), "16"),
        "kernel": (odd, "15"),
        "pool": (word("avg", "max"), "avg"),
        "pos": (word("auto", "original", "compact"), "auto"),
    }

    @classmethod
    def check(cls, options, given):
        if options["budget"].fixed and options["window"] > options["budget"].value:
            raise SpecError("window is above the budget")

    def __init__(self, options, tokens):
        super().__init__(options, tokens)
        self.rows = deque(maxlen=options["window"])  # the last of the prompt, each the mean over the lane's heads
        self.prompt = 0
        self.earlier = None  # How many tokens before the window this lane keeps; None: as many as the budget says.

    def observe(self, t, mass, in_prompt):
        if in_prompt:
            self.rows.append(reduced(mass, "mean"))
            self.prompt = t + 1

    def before_window(self):
        """[window, tokens before the window]"""
        return np.array(self.rows)[:, : max(self.prompt - self.o["window"], 0)]

    def uniform(self):
        """budget - window"""
        return max(self.o["budget"].at(self.prompt) - self.o["window"], 0)

    def score(self):
        return self.before_window().mean(axis=0)

    def insert(self, ids, t, in_prompt):
        return ids + [t]

    def prune_as_first(self, ids, t):
        return self.end_prompt(ids, t)

    def end_prompt(self, ids, t):
        if len(ids) <= self.o["budget"].at(self.prompt):
            return ids
        earlier = ids[: -self.o["window"]]
        pool = self.o.get("pool", "avg")
        score = pooled(self.score(), self.o["kernel"], pool)
        keep = self.uniform() if self.earlier is None else self.earlier
        return sorted(best(earlier, score, keep)) + ids[-self.o["window"] :]


class PyramidKV(SnapKV):
    options = {
        "budget": (Budget, "1024"),
        "window": (whole(1), "16"),
        "kernel": (odd, "15"),
        "beta": (number(0, open_low=True), "20"),
        "pos": (word("auto", "original", "compact"), "auto"),
    }

    @classmethod
    def allot(cls, layers):
        for index, lanes in enumerate(layers):
            for lane in lanes:
                lane.earlier = lane.layer_budget(index, len(layers))

    def layer_budget(self, index, layers):
        b = Fraction(self.uniform())
        before = self.prompt - self.o["window"]
        low = b / self.o["beta"]
        high = 2 * b - low
        if high >= before:
            high = Fraction(before)
            low = 2 * b - high
        if high < low or low < 0 or layers == 1:
            return int(b)
        exact = high - index * (high - low) / (layers - 1)
        rounded = math.floor(exact + Fraction(1, 2))
        in_double = float(high) - index * (float(high) - float(low)) / (layers - 1)
        if rounded != math.floor(in_double + 0.5):
            delicacy.margin = 0.0
        return rounded


class Cake(SnapKV):
    options = {
        "budget": (Budget, "1024"),
        "window": (whole(1), "16"),
        "kernel": (odd, "15"),
        "gamma": (number(0), "200"),
        "tau1": (number(0, open_low=True), "1.6"),
        "tau2": (number(0, open_low=True), "0.4"),
        "pos": (word("auto", "original", "compact"), "auto"),
    }

    # As the published code of CAKE: entropies and variances are summed over the heads, the variance is the sample's,
    # and what rounding down leaves over goes equally to the layers that have room, the remainder to the first.
    @classmethod
    def allot(cls, layers):
        preference = [cls.preference(lanes) for lanes in layers]
        total = len(layers) * layers[0][0].uniform()
        room = [max(lane.before_window().shape[1] for lane in lanes) for lanes in layers]
        shares = []
        for mine, most in zip(preference, room):
            share = total * mine / sum(preference) if sum(preference) > 0 else 0
            shares.append(min(math.floor(share), most))
            if share > 0 and abs(share - round(share)) < 1e-9 * share and len(layers) > 1:
                delicacy.margin = 0.0
        while True:
            left = total - sum(shares)
            open_layers = [i for i in range(len(layers)) if shares[i] < room[i]]
            if left <= 0 or not open_layers:
                break
            for k, i in enumerate(open_layers):
                more = left // len(open_layers) + (1 if k < left % len(open_layers) else 0)
                shares[i] = min(room[i], shares[i] + more)
        for lanes, share in zip(layers, shares):
            for lane in lanes:
                lane.earlier = share

    @staticmethod
    def preference(lanes):
        o = lanes[0].o
        dispersion = shift = 0.0
        for lane in lanes:
            a = lane.before_window()
            positive = a[a > 0]
            dispersion -= float((positive * np.log(positive)).sum())
            shift += float(a.var(axis=0, ddof=1).sum()) if len(a) > 1 else 0.0
        return dispersion ** float(1 / o["tau1"]) * shift ** float(1 / o["tau2"])

    def score(self):
        a = self.before_window()
        return a.mean(axis=0) + float(self.o["gamma"]) * (a.var(axis=0, ddof=1) if len(a) > 1 else 0.0)


POLICIES = {
    "full": Full,
    "window": Window,
    "streaming": Streaming,
    "cascade": Cascade,
    "h2o": H2O,
    "snapkv": SnapKV,
    "pyramidkv": PyramidKV,
    "tova": Tova,
    "cake": Cake,
    "lethe": Lethe,
}
