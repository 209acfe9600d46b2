"""Each panel of the dashboard has data once a server has had traffic: dashboard_check.py KVASIR MODEL DASHBOARD

The expressions of the panels are evaluated as Prometheus would, over two scrapes of a server's metrics: those that the
dashboard uses, and no others. Two servers have between them what the panels show: prefixes on disk, and a swap file.
"""

import json
import math
import re
import subprocess
import sys
import tempfile

from live_server import UNREAD, LiveServer, wait_for
from prefix_disk_check import TEXT, tier
from same_answer_check import PROMPTS, ROUNDS, crowd

# What they show does not happen here: these have series, and they are 0.
QUIET = {"Log lines dropped per second"}


class Scrapes:
    """Two scrapes, some time apart; evaluates expressions at the second one."""

    def __init__(self, before, after):
        self.before, self.after = before, after

    def select(self, selector):
        """A selector's series: key -> labels. It must name no label that they have not."""
        name, matchers = re.fullmatch(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?", selector).groups()
        found = {}
        for key in self.after:
            one, labels = re.fullmatch(r"([^{]+)(?:\{(.*)\})?", key).groups()
            labels = dict(re.findall(r'(\w+)="([^"]*)"', labels or ""))
            if one != name:
                continue
            for label, value in re.findall(r'(\w+)=~"([^"]*)"', matchers or ""):
                assert value == f"${label.replace('_name', '')}", selector
                # Prometheus itself adds the label `instance`.
                assert label in labels or label == "instance", (selector, labels)
            found[key] = {**labels, "instance": "here"}
        return found

    def value(self, expression):
        """The series of an expression: pairs of labels and a value."""
        expression = expression.strip()
        depth = 0
        for i, letter in enumerate(expression):
            depth += (letter in "({") - (letter in ")}")
            if letter == "/" and depth == 0:
                sides = self.value(expression[:i]), self.value(expression[i + 1:])
                return [({}, top / bottom) for (_, top), (_, bottom) in zip(*sides, strict=True) if bottom]
        if found := re.fullmatch(r"histogram_quantile\(([0-9.]+), (.*)\)", expression):
            buckets = sorted((float(labels["le"]), count) for labels, count in self.value(found[2]))
            assert buckets and math.isinf(buckets[-1][0]), expression
            need = float(found[1]) * buckets[-1][1]
            return [({}, next(le for le, count in buckets if count >= need))] if buckets[-1][1] > 0 else []
        if found := re.fullmatch(r"(sum|min|max|count) ?(?:by \(([a-z_, ]+)\) ?)?\((.*)\)", expression):
            groups, by = {}, [label.strip() for label in (found[2] or "").split(",") if label]
            for labels, number in self.value(found[3]):
                groups.setdefault(tuple(labels[label] for label in by), []).append(number)
            act = {"sum": sum, "min": min, "max": max, "count": len}[found[1]]
            return [(dict(zip(by, group)), act(numbers)) for group, numbers in groups.items()]
        if found := re.fullmatch(r"rate\((.*)\[\$__rate_interval\]\)", expression):
            return [(labels, float(self.after[key]) - float(self.before.get(key, 0)))
                    for key, labels in self.select(found[1]).items()]
        return [(labels, float(self.after[key])) for key, labels in self.select(expression).items()]


def check_itself():
    """The evaluation of expressions."""
    scrapes = Scrapes({'a{x="1",model_name="m"}': "3"}, {'a{x="1",model_name="m"}': "5", 'a{x="2",model_name="m"}': "4"})
    assert scrapes.value('sum (rate(a{model_name=~"$model",instance=~"$instance"}[$__rate_interval]))') == [({}, 6)]
    assert scrapes.value('sum by (x) (a{model_name=~"$model"})') == [({"x": "1"}, 5), ({"x": "2"}, 4)]
    assert scrapes.value("sum(a) / max(a)") == [({}, 9 / 5)]
    assert scrapes.value("sum(b)") == []
    buckets = Scrapes({}, {'h_bucket{le="1"}': "2", 'h_bucket{le="2"}': "3", 'h_bucket{le="+Inf"}': "4"})
    assert buckets.value("histogram_quantile(0.5, sum by (le) (rate(h_bucket[$__rate_interval])))") == [({}, 1)]
    assert buckets.value("histogram_quantile(0.75, sum by (le) (rate(h_bucket[$__rate_interval])))") == [({}, 2)]


def traffic(kvasir, model, folder):
    """Scrapes of a server that reads prefixes from disk, has refused requests, and generates while it reads prompts."""
    keys = folder + "/keys.toml"

    def manage(*arguments):
        return subprocess.run([kvasir, "keys", *arguments, "--api-keys", keys], check=True, capture_output=True, text=True).stdout.strip()

    manage("tenant", "ann")
    key = {"Authorization": "Bearer " + manage("add", "--tenant", "ann")}

    def complete(**body):
        return server.ask("POST", "/v1/completions", {"max_tokens": 20, "ignore_eos": True, **body}, key)[0]

    disk = ("--prefix-dir", folder + "/prefixes", "--prefix-disk", "64MiB")
    with LiveServer(kvasir, model, "--api-keys", keys, "--metrics-open", *disk) as server:
        assert complete(prompt=TEXT) == 200
        wait_for(lambda: tier(server, "stores_total") >= 3, "nothing was written")
        assert server.end() == 0
    with LiveServer(kvasir, model, "--api-keys", keys, "--metrics-open", *disk, *UNREAD) as server:
        before = server.metrics()
        assert complete(prompt=TEXT) == 200 and complete(prompt=TEXT) == 200
        assert complete(prompt=TEXT + "The end.", kv={"policy": "h2o:budget=128"}) == 200
        assert complete(prompt=5) == 400
        connection = server.connect()
        connection.request("POST", "/v1/completions", json.dumps(
            {"prompt": "Once", "max_tokens": 10**9, "stream": True, "ignore_eos": True, "kv": {"policy": "window:size=60"}}), key)
        stream = connection.getresponse()
        assert stream.readline().startswith(b"data: ")
        assert complete(prompt="Something else. " + TEXT) == 200
        wait_for(lambda: tier(server, "stores_total") > 0, "nothing was written")
        after = server.metrics()
        stream.close()
        connection.close()
        assert server.end() == 0
    return Scrapes(before, after)


def swapping(kvasir, model, folder):
    """Scrapes of a server on little memory that has preempted and swapped requests."""
    body = {"max_tokens": 192, "temperature": 0, "ignore_eos": True, "kv": {"policy": "h2o:budget=128", "bypass": True}}
    with LiveServer(kvasir, model) as server:
        held = server.complete(prompt=max(PROMPTS, key=len), **body)[1]["kv"]["bytes_peak"]
        assert server.end() == 0
    with LiveServer(kvasir, model, "--kv-memory", f"{3 * held >> 10}KiB", "--swap-dir", folder, "--swap-size", "256MiB") as server:
        before = server.metrics()
        for _ in range(ROUNDS):
            crowd(server, [{"prompt": prompt, **body} for prompt in PROMPTS])
            if server.metric("kvasir:swap_in_total") > 0:
                break
        after = server.metrics()
        assert server.end() == 0
    return Scrapes(before, after)


def main(kvasir, model, path):
    check_itself()
    with open(path, encoding="utf-8") as file:
        panels = [panel for panel in json.load(file)["panels"] if panel["type"] != "row"]
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as other:
        all_scrapes = (traffic(kvasir, model, folder), swapping(kvasir, model, other))
    for panel in panels:
        shown = 0
        for target in panel["targets"]:
            found = [series for scrapes in all_scrapes for series in scrapes.value(target["expr"])]
            assert found, f"{panel['title']}: nothing for {target['expr']}"
            for labels, number in found:
                named = re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])
                assert all(label in labels for label in named), (panel["title"], labels)
                shown += number > 0 and math.isfinite(number)
        assert shown > 0 or panel["title"] in QUIET, f"{panel['title']} shows nothing"
    print(f"{len(panels)} panels have data")


if __name__ == "__main__":
    main(*sys.argv[1:4])
