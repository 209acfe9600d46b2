"""Metrics of `kvasir serve` and the dashboard that shows them: metrics_check.py KVASIR MODEL DASHBOARD"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time

from live_server import ENDLESS, UNREAD, LiveServer, wait_for

SHARED = """num_requests_running num_requests_waiting kv_cache_usage_perc cache_config_info prefix_cache_queries_total
    prefix_cache_hits_total prompt_tokens_total prompt_tokens_cached_total prompt_tokens_recomputed_total
    generation_tokens_total num_preemptions_total request_success_total time_to_first_token_seconds
    inter_token_latency_seconds e2e_request_latency_seconds request_queue_time_seconds request_prefill_time_seconds
    request_decode_time_seconds request_inference_time_seconds request_prompt_tokens
    request_generation_tokens""".split()
OLDER = ["vllm:gpu_cache_usage_perc", "vllm:gpu_prefix_cache_queries_total", "vllm:gpu_prefix_cache_hits_total"]


def families(text):
    """Name -> type, of a text in which every family is declared once, before its samples."""
    types, newest = {}, None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, newest, kind = line.split()
            assert newest not in types, f"{newest} is declared twice"
            types[newest] = kind
        elif not line.startswith("#"):
            name = re.match(r"[a-zA-Z_:][a-zA-Z0-9_:]*", line)[0]
            assert re.fullmatch(re.escape(newest) + ("(_bucket|_sum|_count)?" if types[newest] == "histogram" else ""),
                                name), (newest, name)
            assert newest.startswith("process_") or 'model_name="m"' in line, line
    return types


def check_names(text):
    types = families(text)
    for name in SHARED:
        assert types[f"kvasir:{name}"] == types[f"vllm:{name}"], name
    for name in ["kvasir:admission_rejections_total", *OLDER]:
        assert name in types, name
    for name, kind in types.items():
        assert (kind == "counter") == (name.endswith("_total")), (name, kind)


def check_histograms(values):
    """Buckets are cumulative, the last is the count."""
    buckets = {}
    for key, value in values.items():
        found = re.match(r'(.*)_bucket\{(.*?),?le="(.*?)"\}$', key)
        if found:
            buckets.setdefault(found[1], []).append((float(found[3]), float(value)))
    assert len(buckets) >= 19
    for name, counts in buckets.items():
        assert counts == sorted(counts) and [c for _, c in counts] == sorted(c for _, c in counts), (name, counts)
        assert math.isinf(counts[-1][0]) and counts[-1][1] == float(values[f'{name}_count{{model_name="m"}}']), name


def check_tenant_memory(server):
    """While one request runs, its tenant holds what all requests hold, and no more than planned."""
    def bytes_of(values, name):
        return float(next(value for key, value in values.items() if key.startswith(f"kvasir:{name}{{")))

    values = {}

    def holds():
        values.update(server.metrics())
        return bytes_of(values, "tenant_kv_bytes") > 0

    with server.stream(**ENDLESS):
        wait_for(holds, "no request holds memory")
    held, planned, requests = (bytes_of(values, name) for name in ("tenant_kv_bytes", "tenant_kv_planned_bytes",
                                                                    "kv_request_bytes"))
    assert requests * 0.9 <= held <= requests and held <= planned, (held, planned, requests)


def check_figures(server):
    """Metrics say what the answers said."""
    began = time.monotonic()
    values = server.metrics()
    assert any(re.search(r'^kvasir:cache_config_info{.*block_size="[1-9]', key) for key in values), "before the first request"
    assert float(values['kvasir:kv_budget_bytes{model_name="m"}']) > 0
    usage = []
    for tokens in (5, 9, 30):
        status, answer = server.complete(max_tokens=tokens, ignore_eos=True)
        assert status == 200
        usage.append(answer["usage"])
    assert server.complete(max_tokens=3, kv={}, n=2)[0] == 200
    assert server.complete(max_tokens="five")[0] == 400
    assert server.complete(model="other")[0] == 404
    with server.stream(max_tokens=100):
        assert server.metric("kvasir:http_connections") >= 2
    wait_for(lambda: server.running() == 0, "requests that ended are still running")
    time.sleep(0.1)  # a text of metrics is given again for 20 ms
    took = time.monotonic() - began
    values = server.metrics()

    def one(name, labels=""):
        return float(values[f'{name}{{{labels}{"," if labels else ""}model_name="m"}}'])

    for prefix in ("kvasir", "vllm"):
        assert one(f"{prefix}:request_success_total", 'finished_reason="length"') >= 4
        assert one(f"{prefix}:request_generation_tokens_sum") >= sum(u["completion_tokens"] for u in usage) + 6
        assert one(f"{prefix}:request_prompt_tokens_sum") >= sum(u["prompt_tokens"] for u in usage)
        assert one(f"{prefix}:e2e_request_latency_seconds_count") == 5
        assert one(f"{prefix}:time_to_first_token_seconds_sum") > 0
        assert one(f"{prefix}:inter_token_latency_seconds_count") > 30
    assert one("kvasir:admission_rejections_total", 'reason="invalid"') == 1
    assert one("kvasir:admission_rejections_total", 'reason="unknown_model"') == 1
    assert one("kvasir:step_passes_total") > 40 and 0 < one("kvasir:step_pass_seconds_total") < took
    assert one("kvasir:kv_budget_bytes") >= one("kvasir:kv_peak_bytes") > 0
    assert 0 <= one("kvasir:kv_cache_usage_perc") <= 1
    assert float(values["process_resident_memory_bytes"]) > 10e6
    if one("kvasir:generation_tokens_total") > 0:  # the engine counts them
        assert one("kvasir:generation_tokens_total") >= sum(u["completion_tokens"] for u in usage)
        assert one("kvasir:prompt_tokens_total") >= sum(u["prompt_tokens"] for u in usage)
    else:
        print("the engine reports no token counts yet")
    check_histograms(values)


def check_text(server):
    status, headers, text = server.ask("GET", "/metrics")
    assert status == 200
    check_names(text)
    status, headers, body = server.ask("HEAD", "/metrics")
    assert status == 200 and body == "" and int(headers["Content-Length"]) > 1000
    assert server.ask("POST", "/metrics", b"")[0] == 405
    if shutil.which("promtool"):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, text=True)
        # It advises against colons, which vLLM's names have.
        rest = [line for line in (done.stdout + done.stderr).splitlines() if "':'" not in line]
        assert not rest, rest
    else:
        print("promtool is missing: its check is skipped")


def cpu_seconds(server):
    with open(f"/proc/{server.process.pid}/stat") as file:
        fields = file.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def check_cost(server):
    """A scrape takes little of the processor: 50 ms of its time at most."""
    connection = server.connect()
    for pause, what in ((0.03, "written anew"), (0, "given again")):
        times, used = [], cpu_seconds(server)
        for _ in range(100):
            time.sleep(pause)
            began = time.perf_counter()
            connection.request("GET", "/metrics")
            size = len(connection.getresponse().read())
            times.append(time.perf_counter() - began)
        times.sort()
        print(f"a scrape of {size} bytes, {what}: median {times[50] * 1e3:.2f} ms, slowest {times[-1] * 1e3:.2f} ms")
        used = cpu_seconds(server) - used
        assert used < 100 * 0.05, used


def check_max_itl(kvasir, model):
    """Under --max-itl fewer prompt tokens join a pass that generates; under a bound that nothing can keep, the least, 8."""
    def rows(*options):
        with LiveServer(kvasir, model, "--prefix-memory", "0", *UNREAD, *options) as server:
            with server.stream(max_tokens=10**9, kv={"policy": "streaming:window=252"}):
                texts = [server.complete(prompt=f"{number} a tale of two " * 200, max_tokens=1) for number in range(2)]
            passes, tokens = (server.metric(f"kvasir:step_mixed_{name}_total") for name in ("passes", "prompt_tokens"))
            assert server.end() == 0
        assert passes > 0 and all(status == 200 for status, _ in texts), (passes, texts)
        return tokens / passes, [answer["choices"][0]["text"] for _, answer in texts]

    free, bound = rows(), rows("--max-itl", "0.000001")
    print(f"prompt tokens in a pass that generates: {free[0]:.1f}, and {bound[0]:.1f} under the least bound")
    assert 7 < bound[0] <= 8 and free[0] > 50, (free, bound)
    assert free[1] == bound[1], "the bound is no part of the answer"


def metric_names(expression):
    return set(re.findall(r"\b(?:kvasir:[a-z0-9_]+|process_[a-z_]+)", expression))


def check_dashboard(server, path):
    """Every panel asks a data source that can be chosen for metrics that the server has."""
    with open(path, encoding="utf-8") as file:
        dashboard = json.load(file)
    there = {key.split("{")[0] for key in server.metrics()}
    variables = {v["name"]: v for v in dashboard["templating"]["list"]}
    assert variables["datasource"]["type"] == "datasource" and variables["datasource"]["query"] == "prometheus"
    for variable in variables.values():
        missing = metric_names(json.dumps(variable)) - there
        assert not missing, (variable["name"], missing)
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    assert len(panels) >= 12 and len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    shown = set()
    for panel in panels:
        assert panel["datasource"] == {"type": "prometheus", "uid": "${datasource}"}, panel["title"]
        assert panel["targets"] and panel["title"] and panel["description"], panel["title"]
        for target in panel["targets"]:
            names = metric_names(target["expr"])
            assert names and not names - there, (panel["title"], target["expr"], names - there)
            assert target["expr"].count("(") == target["expr"].count(")")
            shown |= names
        place = panel["gridPos"]
        for other in panels:
            where = other["gridPos"]
            assert other is panel or where["x"] + where["w"] <= place["x"] or place["x"] + place["w"] <= where["x"] or \
                where["y"] + where["h"] <= place["y"] or place["y"] + place["h"] <= where["y"], \
                f"{panel['title']} covers {other['title']}"
    print(f"the dashboard: {len(panels)} panels, {len(shown)} metrics")


def main(kvasir, model, dashboard):
    with tempfile.TemporaryDirectory() as folder, \
            LiveServer(kvasir, model, "--vllm-metrics", "--prefix-dir", folder, "--swap-dir", folder) as server:
        check_figures(server)
        check_tenant_memory(server)
        check_text(server)
        check_cost(server)
        check_dashboard(server, dashboard)
        assert server.end() == 0
    with LiveServer(kvasir, model) as server:
        assert server.complete(prompt="a tale of two " * 40, max_tokens=3)[0] == 200
        assert server.complete(prompt="a tale of two " * 40, max_tokens=3, kv={"policy": "h2o:budget=64"})[0] == 200
        wait_for(lambda: server.running() == 0, "requests that ended are still running")
        assert server.metric("kvasir:kv_request_bytes") == 0, "nobody asks for anything"
        assert server.metric("kvasir:kv_prefix_bytes") == server.metric("kvasir:kv_used_bytes") > 0
        assert not [name for name in server.metrics() if name.startswith("vllm:")]
        assert server.end() == 0
    check_max_itl(kvasir, model)


if __name__ == "__main__":
    main(*sys.argv[1:4])
