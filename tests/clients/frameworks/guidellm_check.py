"""GuideLLM measures `kvasir serve`: guidellm_check.py KVASIR

`torch_stand_in/` takes the place of PyTorch, of which GuideLLM needs only the loader of its prompts.
"""
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

import framework

sys.path.append(str(framework.HERE.parent / "lm_eval"))

from gguf_tokenizer import save_tokenizer  # noqa: E402

PROMPT, OUTPUT = 40, 8  # tokens


def benchmark(server, route, profile, requests):
    """Runs GuideLLM; returns the benchmark of its report."""
    packages = os.pathsep.join([str(framework.HERE / "torch_stand_in"), sys.path[0]])
    environment = {**os.environ, "PYTHONPATH": packages, "HF_HUB_OFFLINE": "1", "USE_TORCH": "0"}
    with tempfile.TemporaryDirectory() as folder:
        save_tokenizer(server.model, folder + "/tokenizer")
        report = pathlib.Path(folder, "report.json")
        command = [sys.executable, "-m", "guidellm", "run", "--disable-console",
                   "--backend", f"kind=openai_http,target={server.url},model=m,request_format={route}",
                   "--tokenizer", f"kind=hf_auto,model={folder}/tokenizer",
                   "--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}",
                   "--profile", profile, "--constraint", f"kind=max_requests,count={requests}",
                   "--output", f"kind=json,path={report}"]
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        try:
            assert process.wait(240) == 0
        finally:
            if process.poll() is None:  # its workers would outlive it
                os.killpg(process.pid, signal.SIGKILL)
        (only,) = json.loads(report.read_text())["benchmarks"]
        return only


def check_routes(server):
    for route, profile in ("/v1/chat/completions", "kind=concurrent,streams=3"), ("/v1/completions", "kind=synchronous"):
        got = benchmark(server, route, profile, requests=6)
        totals = got["metrics"]["request_totals"]
        failed = [each["info"]["error"] for each in got["requests"]["errored"] or []]
        assert totals["errored"] == 0 and totals["successful"] == 6, (route, totals, failed)
        for each in got["requests"]["successful"]:
            # The chat template adds to the prompt.
            assert each["output_metrics"]["text_tokens"] == OUTPUT, each["output_metrics"]
            assert PROMPT - 3 <= each["input_metrics"]["text_tokens"] <= PROMPT + 60, each["input_metrics"]
            timings = each["info"]["timings"]
            assert timings["request_start"] < timings["first_token_iteration"] < timings["last_token_iteration"], timings
            assert timings["token_iterations"] > 3, timings


if __name__ == "__main__":
    framework.main("guidellm", globals())
