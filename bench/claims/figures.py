"""Figures of the outputs of kvasir's commands. A policy is named by its place among --kv."""
import math
import pathlib
import statistics
import typing

# The 97.5% quantile of Student's t by degrees of freedom; beyond, that of the last.
T = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10, 2.09, 2.09, 2.08, 2.07,
     2.07, 2.06, 2.06, 2.06, 2.05, 2.05, 2.05, 2.04, 2.0)


class Difference(typing.NamedTuple):
    """The mean of paired differences, its standard error, and how many there are."""
    mean: float
    error: float
    count: int

    @property
    def margin(self):
        """Half of the 95% interval."""
        return math.inf if self.count < 2 else T[min(self.count - 2, len(T) - 1)] * self.error


def books(values):
    """Returns the names of the texts, without `.txt`."""
    return sorted(path.stem for path in pathlib.Path(values["books"]).glob("*.txt"))


def paired(a, b):
    """Returns the differences a - b; the error of one pair is infinite."""
    pairs = [x - y for x, y in zip(a, b, strict=True)]
    return Difference(statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.inf, len(pairs))


def less(pair):
    """Says whether a difference is below 0: "agrees" where its 95% interval is, "disagrees" where that is above 0."""
    if abs(pair.mean) <= pair.margin:
        return "open"
    return "agrees" if pair.mean < 0 else "disagrees"


def said(pair):
    return f"{pair.mean:+.4f} ± {pair.error:.4f}"


def of_texts(output, policy, key):
    """Returns a figure of `eval ppl` for each text."""
    files = [text["file"] for text in output["texts"]]
    return [[run for run in output["runs"] if run["file"] == file][policy][key] for file in files]


def mean(output, policy, key):
    return statistics.fmean(of_texts(output, policy, key))


def ppl(output, policy):
    """Returns exp of the nats per token over all texts, each text counting alike."""
    return math.exp(mean(output, policy, "nll"))


def difference(output, a, b, key="nll"):
    """Returns a - b, paired by text."""
    return paired(of_texts(output, a, key), of_texts(output, b, key))


def below(output, a, b, key="nll"):
    """Says whether a is below b."""
    return less(difference(output, a, b, key))


def alike(output, a, b, within, key="nll"):
    """Says whether a and b differ by less than `within`, the 95% interval included."""
    pair = difference(output, a, b, key)
    if abs(pair.mean) + pair.margin < within:
        return "agrees"
    return "disagrees" if abs(pair.mean) - pair.margin > within else "open"


def differ(output, a, b, by, key="nll"):
    """Says whether a is below b by more than `by`, the 95% interval included."""
    pair = difference(output, a, b, key)
    if pair.mean + pair.margin < -by:
        return "agrees"
    return "disagrees" if pair.mean - pair.margin > -by else "open"


def signed(output, a, b, key="nll"):
    return said(difference(output, a, b, key))


def all_of(*verdicts):
    """Returns the verdict on a claim of several parts, which agrees where all parts do."""
    if "disagrees" in verdicts:
        return "disagrees"
    return "open" if "open" in verdicts else "agrees"


def each_of(*verdicts):
    """Returns the verdict on a claim that was measured on several models, or under several settings: "mixed" unless they say the same."""
    return verdicts[0] if len(set(verdicts)) == 1 else "mixed"
