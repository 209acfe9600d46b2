"""Figures of the outputs of kvasir's commands. A policy is named by its place among --kv."""
import math
import statistics


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
    pairs = [x - y for x, y in zip(of_texts(output, a, key), of_texts(output, b, key), strict=True)]
    if len(pairs) < 2:
        return pairs[0], math.inf
    return statistics.fmean(pairs), statistics.stdev(pairs) / math.sqrt(len(pairs))


def below(output, a, b, key="nll"):
    """Says whether a is below b: "agrees" where it is by two standard errors, "disagrees" where it is above by them."""
    pair, error = difference(output, a, b, key)
    if abs(pair) <= 2 * error:
        return "open"
    return "agrees" if pair < 0 else "disagrees"


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
    return "{:+.4f} ± {:.4f}".format(*difference(output, a, b, key))


def all_of(*verdicts):
    if "disagrees" in verdicts:
        return "disagrees"
    return "open" if "open" in verdicts else "agrees"
