"""Figures of the outputs of kvasir's commands. A policy is named by its place among --kv."""
import math
import pathlib
import statistics


def books(values):
    """Returns the names of the texts, without `.txt`."""
    return sorted(path.stem for path in pathlib.Path(values["books"]).glob("*.txt"))


def paired(a, b):
    """Returns mean and standard error of the differences a - b; the error of one pair is infinite."""
    pairs = [x - y for x, y in zip(a, b, strict=True)]
    return statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs)) if len(pairs) > 1 else math.inf


def less(pair):
    """Says whether a difference is below 0: "agrees" where it is by two standard errors, "disagrees" where it is above by them."""
    mean, error = pair
    if abs(mean) <= 2 * error:
        return "open"
    return "agrees" if mean < 0 else "disagrees"


def said(pair):
    return "{:+.4f} ± {:.4f}".format(*pair)


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
    """Returns mean and standard error of a - b, paired by text."""
    return paired(of_texts(output, a, key), of_texts(output, b, key))


def below(output, a, b, key="nll"):
    """Says whether a is below b."""
    return less(difference(output, a, b, key))


def alike(output, a, b, within, key="nll"):
    """Says whether a and b differ by less than `within`, two standard errors included."""
    pair, error = difference(output, a, b, key)
    if abs(pair) + 2 * error < within:
        return "agrees"
    return "disagrees" if abs(pair) - 2 * error > within else "open"


def differ(output, a, b, by, key="nll"):
    """Says whether a is below b by more than `by`, two standard errors included."""
    pair, error = difference(output, a, b, key)
    if pair + 2 * error < -by:
        return "agrees"
    return "disagrees" if pair - 2 * error > -by else "open"


def signed(output, a, b, key="nll"):
    return said(difference(output, a, b, key))


def all_of(*verdicts):
    if "disagrees" in verdicts:
        return "disagrees"
    return "open" if "open" in verdicts else "agrees"
