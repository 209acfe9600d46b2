"""Several models in one server, against the real program: models_check.py KVASIR SMALL_MODEL MODEL [--short]

Each answer is compared with that of a server which has this model alone. --short: for a slow build; fewer answers will do.
"""

import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time

from live_server import ENDLESS, LiveServer, wait_for

HI = [{"role": "user", "content": "Who are you?"}]
DIALECTS = {  # path -> a body without "model", how to read the text
    "/v1/completions": ({"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0}, lambda a: a["choices"][0]["text"]),
    "/v1/chat/completions": ({"messages": HI, "max_tokens": 12, "temperature": 0},
                             lambda a: a["choices"][0]["message"]["content"]),
    "/v1/responses": ({"input": "Who are you?", "max_output_tokens": 12, "temperature": 0},
                      lambda a: a["output"][0]["content"][0]["text"]),
    "/v1/messages": ({"messages": HI, "max_tokens": 12, "temperature": 0}, lambda a: a["content"][0]["text"]),
    "/api/chat": ({"messages": HI, "stream": False, "options": {"num_predict": 12, "temperature": 0}},
                  lambda a: a["message"]["content"]),
    "/api/generate": ({"prompt": "Who are you?", "stream": False, "options": {"num_predict": 12, "temperature": 0}},
                      lambda a: a["response"]),
    "/completion": ({"prompt": "Once upon a time", "n_predict": 12, "temperature": 0}, lambda a: a["content"]),
    "/tokenize": ({"prompt": "Once upon a time"}, lambda a: (a["tokens"], a["max_model_len"])),
    "/detokenize": ({"tokens": [20, 30, 40]}, lambda a: a["prompt"]),
    "/apply-template": ({"messages": HI}, lambda a: a["prompt"]),
    "/v1/completions/render": ({"prompt": "Once upon a time"}, lambda a: a[0]["token_ids"]),
    "/v1/chat/completions/render": ({"messages": HI}, lambda a: a["token_ids"]),
    "/v1/messages/count_tokens": ({"messages": HI}, lambda a: a["input_tokens"]),
    "/v1/kv/plan": ({"prompt_tokens": 100, "max_tokens": 10}, lambda a: (a["kv_bytes"], a["trained_context"])),
}


def post(server, path, body):
    status, fields, text = server.ask("POST", path, body)
    return status, fields, json.loads(text)


def answers(server, name=None):
    """Path -> what the model says there; `name`: of the model, if the body names one."""
    said = {}
    for path, (body, read) in DIALECTS.items():
        status, _, got = post(server, path, {**body, "model": name} if name else body)
        assert status == 200, (path, name, got)
        said[path] = read(got)
    return said


def states(server):
    status, _, text = server.ask("GET", "/v1/models")
    assert status == 200
    return {each["id"]: each for each in json.loads(text)["data"]}


def state(server, name):
    return states(server)[name]["state"]


def started(kvasir, *options):
    return LiveServer(kvasir, None, *options, place=())


def refused(kvasir, *options):
    """The one line with which the server refuses to start."""
    ran = subprocess.run([kvasir, "serve", "--port", "0", *options], capture_output=True, text=True, timeout=120)
    assert ran.returncode in (1, 2), ran
    said = [line for line in ran.stderr.splitlines() if line.startswith("kvasir: ")]
    assert len(said) == 1, ran.stderr
    return said[0]


class Models:
    """A folder with a large and a small model, and what each says alone."""

    def __init__(self, kvasir, model, small, folder, short=False):
        self.short = short
        self.kvasir, self.folder = kvasir, os.path.join(folder, "models")
        os.mkdir(self.folder)
        self.large_path, self.small_path = os.path.join(self.folder, "large.gguf"), os.path.join(self.folder, "small.gguf")
        shutil.copy(model, self.large_path)
        shutil.copy(small, self.small_path)
        self.alone = {}
        for name, path in (("large", self.large_path), ("small", self.small_path)):
            with LiveServer(kvasir, path) as server:
                self.alone[name] = answers(server)
        assert self.alone["large"] != self.alone["small"]

    def plan(self, *options):
        ran = subprocess.run([self.kvasir, "serve", "--models-dir", self.folder, "--plan", "--json", *options],
                             capture_output=True, text=True, timeout=120, check=True)
        return json.loads(ran.stdout)

    def plan_text(self, *options):
        return subprocess.run([self.kvasir, "serve", "--models-dir", self.folder, "--plan", *options],
                              capture_output=True, text=True, timeout=120, check=True).stdout

    def bound(self, kv):
        """Memory for either model with so much KV memory, but not for both."""
        totals = {each["model"]: each["total_bytes"] for each in self.plan("--kv-memory", kv)["models"]}
        return str(max(totals.values()) + min(totals.values()) // 2)


def check_every_dialect(models):
    """Both models in memory: each dialect answers by the model that its body names, as that model does alone."""
    with started(models.kvasir, "--models-dir", models.folder, "--kv-memory", "64MiB") as server:
        assert {name: each["state"] for name, each in states(server).items()} == {"large": "unloaded", "small": "unloaded"}
        for name in ("small", "large", "small"):
            assert answers(server, name) == models.alone[name], name
        assert answers(server) == models.alone["large"]  # the first is the default
        assert {each["state"] for each in states(server).values()} == {"loaded"}
        for path, (body, _) in DIALECTS.items():
            status, _, got = post(server, path, {**body, "model": "other"})
            assert status == 404 and "there are 'large', 'small'" in json.dumps(got), (path, got)
            if path.startswith(("/v1/chat", "/v1/completions", "/tokenize")):
                assert got["error"]["param"] == "model" and got["error"]["code"] == "model_not_found", (path, got)
        # Ollama's clients may write a tag; the body's names are read as a parser reads them.
        body, read = DIALECTS["/api/generate"]
        assert read(post(server, "/api/generate", {**body, "model": "small:latest"})[2]) == models.alone["small"]["/api/generate"]
        text = '{"prompt": "Once upon a time", "max_tokens": 12, "temperature": 0, "mod\\u0065l": "small", "x": {"model": "other"}}'
        assert json.loads(server.ask("POST", "/v1/completions", text)[2])["model"] == "small"
        for broken in ('{"model": "small", ', '{"model"', "", '{"model": 5, "prompt": "a"}'):
            assert server.ask("POST", "/v1/completions", broken)[0] == 400, broken
        tags = json.loads(server.ask("GET", "/api/tags")[2])["models"]
        running = json.loads(server.ask("GET", "/api/ps")[2])["models"]
        assert [each["name"] for each in tags] == [each["name"] for each in running] == ["large", "small"]
        assert [each["digest"] for each in tags] == [each["digest"] for each in running]
        assert json.loads(server.ask("GET", "/v1/models/small")[2])["max_model_len"] == 2048
        assert server.ask("GET", "/v1/models/other")[0] == 404
        show = post(server, "/api/show", {"model": "small:latest"})[2]["model_info"]
        assert show["llama.context_length"] == 2048, show
        assert json.loads(server.ask("GET", "/props?model=small")[2])["model_alias"] == "small"
        assert json.loads(server.ask("GET", "/props")[2])["model_alias"] == "large"
        assert server.ask("GET", "/props?model=other")[0] == 404
        assert server.ask("GET", "/props?model=%zz")[0] == 400
        assert json.loads(server.ask("GET", "/slots?model=small")[2])[0]["n_ctx"] == 2048
        metrics = server.metrics()
        for name in ("large", "small"):
            assert float(metrics[f'kvasir:generation_tokens_total{{model_name="{name}"}}']) > 0
            assert float(metrics[f'kvasir:model_loaded{{model_name="{name}"}}']) == 1
            assert float(metrics[f'kvasir:e2e_request_latency_seconds_count{{model_name="{name}"}}']) >= 7
        assert server.end() == 0


def check_invalid_requests(models):
    """A request that cannot be answered loads no model, and so unloads none."""
    with started(models.kvasir, "--models-dir", models.folder, "--kv-memory", "8MiB", "--memory", models.bound("8MiB")) as server:
        assert post(server, "/tokenize", {"model": "small", "prompt": "a"})[0] == 200
        for path, (body, _) in DIALECTS.items():
            text = json.dumps({"model": "large", **body})
            for bad in (text[:-1], text + "}", "", "[]", json.dumps({**body, "model": 5}), json.dumps({**body, "model": ["large"]}),
                        json.dumps({**body, "model": "large" * 1000}), '{"model": ' + "[" * 100_000 + "]" * 100_000 + "}"):
                status, _, said = server.ask("POST", path, bad)
                assert status == 400, (path, bad[:80], status, said)
        status, _, got = post(server, "/v1/chat/completions", {"messages": HI, "model": 5})
        assert status == 400 and got["error"]["param"] == "model" and "a string" in got["error"]["message"], got
        # What the header of a file tells needs no loading.
        show = post(server, "/api/show", {"model": "large"})[2]
        assert show["model_info"]["llama.vocab_size"] > 0 and show["capabilities"] == ["completion"], show
        assert post(server, "/api/show", {"model": "other"})[0] == 404
        assert post(server, "/api/show", {"model": 5})[0] == 400
        assert server.ask("POST", "/api/show", '{"model": "large"')[0] == 400
        assert {name: each["state"] for name, each in states(server).items()} == {"large": "unloaded", "small": "loaded"}
        assert server.end() == 0


def check_exchange(models):
    """Memory for one: each is unloaded for the other, and says the same every time. What is loaded is what was planned."""
    bound = models.bound("8MiB")
    plan = {each["model"]: each for each in models.plan("--kv-memory", "8MiB", "--memory", bound)["models"]}
    with started(models.kvasir, "--models-dir", models.folder, "--kv-memory", "8MiB", "--memory", bound) as server:
        for name in ("small", "large") * 3:
            assert answers(server, name) == {**models.alone[name], "/v1/kv/plan": answers(server, name)["/v1/kv/plan"]}, name
            now = states(server)
            assert [each for each in now if now[each]["state"] == "loaded"] == [name], now
            for field in ("weight_bytes", "kv_bytes", "workspace_bytes"):
                assert now[name][field] == plan[name][field], (field, now[name], plan[name])
            assert [each["name"] for each in json.loads(server.ask("GET", "/api/ps")[2])["models"]] == [name]
        assert float(server.metrics()['kvasir:model_loads_total{model_name="small"}']) == 3
        assert float(server.metrics()['kvasir:kv_budget_bytes{model_name="large"}']) == 8 << 20
        assert server.end() == 0


def check_busy_models_stay(models):
    """A model with an answer under way is not unloaded. Who waits for the other may leave, and wait in vain."""
    with started(models.kvasir, "--models-dir", models.folder, "--kv-memory", "8MiB", "--memory", models.bound("8MiB"),
                 "--queue-timeout", "2") as server:
        stream = server.stream(model="large", **ENDLESS)
        begun = time.monotonic()
        status, fields, got = post(server, "/v1/completions", {"model": "small", "prompt": "a", "max_tokens": 1})
        assert status == 503 and got["error"]["code"] == "queue_timeout" and fields["Retry-After"], got
        assert 1.5 < time.monotonic() - begun < 30
        status, fields, got = post(server, "/tokenize", {"model": "small", "prompt": "a"})
        assert status == 503 and got["error"]["code"] == "queue_timeout" and fields["Retry-After"], got
        assert state(server, "large") == "loaded" and state(server, "small") == "unloaded"
        # One that leaves while it waits loads nothing.
        waits = server.connect()
        waits.request("POST", "/v1/completions", json.dumps({"model": "small", "prompt": "a"}))
        wait_for(lambda: float(server.metrics()['kvasir:num_requests_waiting{model_name="small"}']) == 1)
        waits.close()
        wait_for(lambda: float(server.metrics()['kvasir:num_requests_waiting{model_name="small"}']) == 0)
        assert stream.readline() is not None
        stream.close()
        wait_for(lambda: server.running() == 0)
        time.sleep(0.6)
        assert state(server, "large") == "loaded" and state(server, "small") == "unloaded"
        # Once nothing holds the large one, the small one takes its place.
        assert post(server, "/v1/completions", {"model": "small", "prompt": "a", "max_tokens": 1})[0] == 200
        assert server.end() == 0


def check_no_starvation(models):
    """Steady traffic to two models that do not fit together: requests overlap, so that neither is ever idle by itself."""
    with started(models.kvasir, "--models-dir", models.folder, "--kv-memory", "8MiB", "--memory", models.bound("8MiB")) as server:
        want = {name: models.alone[name]["/v1/completions"] for name in ("large", "small")}
        served, longest, wrong = {"large": 0, "small": 0}, {"large": 0.0, "small": 0.0}, []
        until = time.monotonic() + (40 if models.short else 14)

        def client(name):
            while time.monotonic() < until:
                begun = time.monotonic()
                body, read = DIALECTS["/v1/completions"]
                status, _, got = post(server, "/v1/completions", {**body, "model": name})
                if status != 200 or read(got) != want[name]:
                    wrong.append(got)
                served[name] += 1
                longest[name] = max(longest[name], time.monotonic() - begun)

        clients = [threading.Thread(target=client, args=(name,)) for name in ("large", "small") for _ in range(4)]
        for each in clients:
            each.start()
        for each in clients:
            each.join()
        metrics = server.metrics()
        loads = [float(metrics[f'kvasir:model_loads_total{{model_name="{name}"}}']) for name in ("large", "small")]
        assert not wrong, wrong[0]
        assert min(served.values()) > (4 if models.short else 30), served
        assert max(longest.values()) < (120 if models.short else 12), longest
        assert min(loads) >= 2, loads  # they took turns
        assert max(loads) <= 12, loads  # each of them a while
        assert server.end() == 0
        print(f"  answers {served}, longest wait {longest}, loads {loads}")


def check_drain(models):
    """A request that waits for a model is ended with an error when the time to drain is over."""
    with started(models.kvasir, "--models-dir", models.folder, "--kv-memory", "8MiB", "--memory", models.bound("8MiB"),
                 "--drain", "1") as server:
        stream = server.stream(model="large", **ENDLESS)
        got = []
        waits = threading.Thread(target=lambda: got.append(
            post(server, "/v1/completions", {"model": "small", "prompt": "a", "max_tokens": 1})))
        waits.start()
        wait_for(lambda: float(server.metrics()['kvasir:num_requests_waiting{model_name="small"}']) == 1)
        server.signal(signal.SIGTERM)
        waits.join(60)
        assert got and got[0][0] == 503 and got[0][2]["error"]["code"] == "shutdown", got
        assert server.process.wait(60) == 0
        stream.close()


def check_configuration(models, folder):
    """Tables [[models]]: names, defaults of requests, KV memory, what is loaded at the start."""
    path = os.path.join(folder, "serve.toml")
    with open(path, "w") as file:
        file.write(f'kv-memory = "16MiB"\ntemp = 0.5\n\n[[models]]\nname = "first"\npath = "{models.small_path}"\n'
                   f'kv = "streaming:sinks=2,window=30"\nmax-batch = 3\n\n[[models]]\nname = "org/second"\npreload = true\n'
                   f'path = "{models.large_path}"\nkv-memory = "8MiB"\ntemp = 0.0\nkv-type = "q8"\n\n[[models]]\n'
                   f'path = "{models.small_path}"\n')
    with started(models.kvasir, "--config", path) as server:
        now = states(server)
        assert {name: (each["state"], each["kv_bytes"]) for name, each in now.items()} == {
            "first": ("unloaded", 16 << 20), "org/second": ("loaded", 8 << 20), "small": ("unloaded", 16 << 20)}, now
        for name, policy, temperature, codec in (("first", "streaming:sinks=2,window=30", 0.5, "f16"), (None, None, 0.5, "f16"),
                                                 ("org/second", "full", 0.0, "q8"), ("small", "full", 0.5, "f16")):
            body = {"prompt": "Once upon a time", "max_tokens": 2, **({"model": name} if name else {})}
            status, _, got = post(server, "/v1/completions", body)
            assert status == 200 and got["model"] == (name or "first"), got
            assert policy is None or got["kv"]["policy"] == policy, got["kv"]
            assert got["kv"]["codec"] == codec, got["kv"]
            assert got["sampling"]["temperature"] == temperature, got["sampling"]
        assert json.loads(server.ask("GET", "/v1/models/org/second")[2])["id"] == "org/second"
        assert len(json.loads(server.ask("GET", "/slots")[2])) == 3
        assert server.end() == 0
    # What is printed is read again as it was.
    ran = [subprocess.run([models.kvasir, "serve", "--config", each, "--print-config"], capture_output=True, text=True, check=True)
           .stdout for each in (path,)][0]
    again = os.path.join(folder, "again.toml")
    with open(again, "w") as file:
        file.write(ran)
    assert subprocess.run([models.kvasir, "serve", "--config", again, "--print-config"], capture_output=True, text=True,
                          check=True).stdout == ran and ran.count("[[models]]") == 3, ran
    # -m stands before them, and is the default.
    with LiveServer(models.kvasir, models.large_path, "--config", path) as server:
        assert list(states(server)) == ["m", "first", "org/second", "small"] and state(server, "m") == "loaded"
        assert server.complete(max_tokens=1)[1]["model"] == "m"
    for text, said in (
            ('[[models]]\nname = "a"\n', "serve.toml:2:1: a table [[models]] needs a path"),
            ('[[models]]\npath = "/nowhere/a.gguf"\n', "/nowhere/a.gguf"),
            (f'[[models]]\npath = "{models.small_path}"\nkw = "full"\n', "serve.toml:3:1: there is no option 'kw'; did you mean 'kv'?"),
            (f'[[models]]\npath = "{models.small_path}"\nthreads = 1\n', "serve.toml:3:1: there is no option 'threads' of a model; those of the server stand"),
            (f'[[models]]\nname = "a"\npath = "{models.small_path}"\nkv = "nope"\n', "the model 'a': "),
            (f'[[models]]\npath = "{models.small_path}"\ntemp = "a"\n', "serve.toml:3:1: temp: a number is expected"),
            (f'[[models]]\npath = "{models.small_path}"\nkv = "nonsense"\n', "nonsense"),
            (f'[[models]]\npath = "{models.small_path}"\n[[models]]\npath = "{models.large_path}"\nname = "small"\n',
             "two models have the name 'small'"),
            ('[models]\npath = "a"\n', "models: this is a table"),
            ("models = 5\n", "models: tables are expected"),
            ('[[port]]\na = 1\n', "port: "),
    ):
        with open(path, "w") as file:
            file.write(text)
        line = refused(models.kvasir, "--config", path)
        assert said in line, (text, line)


def check_bad_folders(models, folder):
    """Files that cannot be used are listed with the reason, and cost no other model anything."""
    mixed = os.path.join(folder, "mixed")
    os.makedirs(os.path.join(mixed, "inside"))
    os.makedirs(os.path.join(mixed, "empty"))
    shutil.copy(models.small_path, os.path.join(mixed, "good.gguf"))
    shutil.copy(models.small_path, os.path.join(mixed, "inside", "nested.gguf"))
    os.symlink(os.path.join(mixed, "good.gguf"), os.path.join(mixed, "link.gguf"))
    os.symlink(os.path.join(mixed, "nowhere.gguf"), os.path.join(mixed, "dangling.gguf"))
    with open(models.small_path, "rb") as whole, open(os.path.join(mixed, "cut.gguf"), "wb") as cut:
        cut.write(whole.read(200_000))
    for name, content in (("text.gguf", b"hello\n"), ("empty.gguf", b""), ("notes.txt", b"hello\n"), ("mmproj-x.gguf", b"x")):
        with open(os.path.join(mixed, name), "wb") as file:
            file.write(content)
    # The header of a LoRA adapter, which is no model, and not one that cannot be loaded either.
    text = lambda value: struct.pack("<Q", len(value)) + value.encode()
    with open(os.path.join(mixed, "adapter.gguf"), "wb") as file:
        file.write(b"GGUF" + struct.pack("<IQQ", 3, 0, 1) + text("general.type") + struct.pack("<I", 8) + text("adapter"))
    with started(models.kvasir, "--models-dir", mixed, "--kv-memory", "8MiB") as server:
        now = states(server)
        said = [line for line in server.lines if "adapter.gguf" in line]
        assert len(said) == 1 and "LoRA adapters" in said[0], server.lines
        assert list(now) == ["good", "cut", "dangling", "empty", "nested", "text"], now  # the first that is usable is the default
        for name in ("cut", "dangling", "empty", "text"):
            assert now[name]["state"] == "failed" and now[name]["reason"] and mixed not in now[name]["reason"], now[name]
            status, _, got = post(server, "/v1/completions", {"model": name, "prompt": "a"})
            assert status == 400 and got["error"]["code"] == "model_unavailable", got
            assert now[name]["reason"] in got["error"]["message"] and mixed not in got["error"]["message"], got
        assert "truncated" in now["cut"]["reason"]
        for name in ("good", "nested"):
            assert answers(server, name)["/v1/completions"] == models.alone["small"]["/v1/completions"]
        # A file that goes away, or is damaged, after the start.
        os.remove(os.path.join(mixed, "inside", "nested.gguf"))
        assert post(server, "/v1/completions", {"model": "nested", "prompt": "a", "max_tokens": 1})[0] == 200
        assert server.end() == 0
    shutil.copy(models.small_path, os.path.join(mixed, "later.gguf"))
    with started(models.kvasir, "--models-dir", mixed, "--kv-memory", "8MiB") as server:
        os.truncate(os.path.join(mixed, "later.gguf"), 1000)
        status, fields, got = post(server, "/v1/completions", {"model": "later", "prompt": "a"})
        assert status == 503 and got["error"]["code"] == "model_unavailable" and fields["Retry-After"], got
        assert mixed not in got["error"]["message"], got
        assert state(server, "later") == "failed"
        assert post(server, "/v1/completions", {"model": "good", "prompt": "a", "max_tokens": 1})[0] == 200
        assert server.end() == 0
    assert "cannot be read" in refused(models.kvasir, "--models-dir", os.path.join(folder, "nowhere"))
    assert "no model to serve" in refused(models.kvasir, "--models-dir", os.path.join(mixed, "empty"))
    os.mkdir(os.path.join(mixed, "good"))
    shutil.copy(models.large_path, os.path.join(mixed, "good", "good.gguf"))
    assert "two models have the name 'good'" in refused(models.kvasir, "--models-dir", mixed)


def check_pulled(models, folder):
    """The models of Kvasir's own folder; a file that is there already is one model, not two."""
    cache = os.path.join(folder, "cache", "models")
    os.makedirs(cache)
    shutil.copy(models.small_path, os.path.join(cache, "pulled.gguf"))
    environment = {"KVASIR_CACHE": os.path.dirname(cache), "HF_HUB_CACHE": os.path.join(folder, "none")}
    with LiveServer(models.kvasir, None, "--pulled-models", "--models-dir", cache, "--kv-memory", "8MiB", place=(),
                    environment=environment) as server:
        assert list(states(server)) == ["pulled"], states(server)
        assert answers(server, "pulled")["/v1/completions"] == models.alone["small"]["/v1/completions"]
    with LiveServer(models.kvasir, None, "--pulled-models", "--models-dir", models.folder, "--kv-memory", "8MiB", place=(),
                    environment=environment) as server:
        assert list(states(server)) == ["large", "small", "pulled"], states(server)
        assert answers(server, "pulled")["/v1/completions"] == models.alone["small"]["/v1/completions"]


def check_memory(models):
    """Bounds that no model, some models or all models fit into."""
    line = refused(models.kvasir, "-m", models.large_path, "--memory", "1MiB")
    assert "memory" in line and "weights" in line, line
    for size in ("nonsense", "-1", "1ZiB"):
        assert "--memory" in refused(models.kvasir, "-m", models.small_path, "--memory", size), size
    assert "--name is for the model of -m" in refused(models.kvasir, "--models-dir", models.folder, "--name", "m")
    line = refused(models.kvasir, "-m", models.large_path, "--memory", "30MiB", "--kv-memory", "20MiB")
    assert "the model 'large' cannot be loaded: it needs" in line and "--memory is 30.0 MiB" in line, line
    # Not one of them fits.
    line = refused(models.kvasir, "--models-dir", models.folder, "--memory", "1MiB")
    assert "the model 'large' cannot be loaded: its weights take" in line, line
    text = models.plan_text("--memory", "1MiB")
    assert "no model can be loaded" in text and "fit" not in text, text
    # A plan shows what is too large, although the server would not start.
    text = subprocess.run([models.kvasir, "serve", "-m", models.large_path, "--models-dir", models.folder, "--plan", "--memory",
                           "20MiB", "--kv-memory", "4MiB"], capture_output=True, text=True, check=True).stdout
    assert "cannot be loaded: it needs" in text and "small" in text and "serve does not start: " in text, text
    assert "--plan" in refused(models.kvasir, "-m", models.small_path, "--json")
    # Found ones that are too large are listed so.
    with started(models.kvasir, "--models-dir", models.folder, "--memory", "20MiB", "--kv-memory", "4MiB") as server:
        now = states(server)
        assert now["large"]["state"] == "failed" and "but --memory is 20.0 MiB" in now["large"]["reason"], now["large"]
        assert post(server, "/v1/completions", {"model": "large", "prompt": "a"})[0] == 400
        assert post(server, "/v1/completions", {"model": "small", "prompt": "a", "max_tokens": 1})[0] == 200
    # All that are loaded at the start have to fit together.
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as file:
        file.write("".join(f'[[models]]\npath = "{path}"\npreload = true\n' for path in (models.large_path, models.small_path)))
        file.flush()
        assert "loaded at the start" in refused(models.kvasir, "--config", file.name, "--kv-memory", "8MiB", "--memory",
                                                models.bound("8MiB"))
    # Without sizes of their own two models that are small in this memory fit together.
    plan = models.plan("--memory", "400MiB")
    assert plan["fits"] and plan["fit_together"] == [["large", "small"]], plan
    assert plan["total_bytes"] == sum(each["total_bytes"] for each in plan["models"]) <= 400 << 20, plan
    plan = models.plan("--memory", models.bound("8MiB"), "--kv-memory", "8MiB")
    assert not plan["fits"] and plan["fit_together"] == [["large"], ["small"]], plan
    text = models.plan_text("--memory", "400MiB")
    assert "large" in text and "they fit" in text, text


def check_sessions(models, folder):
    """Sessions belong to the default model, which then stays."""
    kept = os.path.join(folder, "sessions")
    bound = str(int(models.bound("8MiB")) * 2)
    with started(models.kvasir, "--models-dir", models.folder, "--sessions", kept, "--kv-memory", "8MiB", "--memory", bound) as server:
        assert state(server, "large") == "loaded"
        body = {"prompt": "Once upon a time", "max_tokens": 2, "session": "s"}
        assert post(server, "/v1/completions", body)[0] == 200
        status, _, got = post(server, "/v1/completions", {**body, "model": "small"})
        assert status == 400 and "sessions of the model 'large' alone" in got["error"]["message"], got
        status, _, got = post(server, "/v1/sessions/s", {"model": "small", "prompt": "a"})
        assert status == 400 and got["error"]["param"] == "session", got
        assert post(server, "/v1/completions", {"model": "small", "prompt": "a", "max_tokens": 1})[0] == 200
        assert state(server, "large") == "loaded"
        assert server.end() == 0
    # Nothing but the default fits beside the default.
    with started(models.kvasir, "--models-dir", models.folder, "--sessions", kept, "--kv-memory", "8MiB", "--memory",
                 models.bound("8MiB")) as server:
        status, _, got = post(server, "/v1/completions", {"model": "small", "prompt": "a"})
        said = got["error"]["message"]
        assert status == 400 and said.startswith("the model 'small' cannot be loaded: it needs"), got
        assert "beside 'large', which stays loaded for --sessions; raise --memory" in said, got
    # A plan knows that too.
    options = ("--sessions", kept, "--kv-memory", "8MiB", "--memory", models.bound("8MiB"))
    plan = models.plan(*options)
    assert [each["refusal"] is None for each in plan["models"]] == [True, False], plan
    assert plan["fit_together"] == [["large"]], plan
    # A first file that cannot be used is not loaded at the start: the next is the default. Nor is one that is too large.
    mixed = os.path.join(folder, "unusable")
    os.mkdir(mixed)
    shutil.copy(models.small_path, os.path.join(mixed, "b.gguf"))
    with open(models.small_path, "rb") as whole, open(os.path.join(mixed, "a.gguf"), "wb") as cut:
        cut.write(whole.read(200_000))
    for first in (None, models.large_path):
        if first:
            shutil.copy(first, os.path.join(mixed, "a.gguf"))
        with started(models.kvasir, "--models-dir", mixed, "--sessions", kept, "--memory", "20MiB", "--kv-memory", "4MiB") as server:
            assert {name: each["state"] for name, each in states(server).items()} == {"b": "loaded", "a": "failed"}
            assert post(server, "/v1/completions", {"prompt": "a", "max_tokens": 1, "session": "t"})[0] == 200
            assert server.end() == 0
    os.remove(os.path.join(mixed, "b.gguf"))
    assert "the model 'a' cannot be loaded" in refused(models.kvasir, "--models-dir", mixed, "--sessions", kept, "--memory",
                                                       "20MiB", "--kv-memory", "20MiB")


def main(kvasir, small, model, *short):
    with tempfile.TemporaryDirectory() as folder:
        models = Models(kvasir, model, small, folder, bool(short))
        for check in (lambda: check_every_dialect(models), lambda: check_invalid_requests(models),
                      lambda: check_exchange(models), lambda: check_busy_models_stay(models),
                      lambda: check_no_starvation(models), lambda: check_drain(models), lambda: check_configuration(models, folder),
                      lambda: check_bad_folders(models, folder), lambda: check_pulled(models, folder),
                      lambda: check_memory(models), lambda: check_sessions(models, folder)):
            begun = time.monotonic()
            check()
            print(f"{check.__code__.co_names[0]}: ok ({time.monotonic() - begun:.1f} s)", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
