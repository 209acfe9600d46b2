"""Preempted requests' pages go to a swap file and come back: swap_check.py KVASIR MODEL

On little memory answers have the bits of those on enough memory, and the metrics say that pages were swapped. A file that is
too small costs time only. A killed server leaves nothing in the folder. Folders and sizes that cannot be used are refused.
"""

import concurrent.futures
import os
import resource
import signal
import sys
import tempfile
import time

from live_server import LiveServer, refused, wait_for
from same_answer_check import PROMPTS, ROUNDS, answer, crowd

# What h2o keeps depends on each step of decoding: to compute it again takes as long as the first time.
POLICY = "h2o:budget=128"
TOKENS = 192


def request(prompt, **fields):
    return {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True,
            "kv": {"policy": POLICY, "bypass": True}, **fields}


def swapped(server):
    return {name: server.metric(f"kvasir:swap_{name}_total") for name in ("out", "in", "failed", "out_bytes", "in_bytes")}


def check_answers(kvasir, model, folder, memory, alone, *codec):
    """Returns what was swapped."""
    with LiveServer(kvasir, model, "--kv-memory", memory, "--swap-dir", folder, "--swap-size", "256MiB", *codec) as server:
        began = time.monotonic()
        for _ in range(ROUNDS):
            got = crowd(server, [request(prompt) for prompt in PROMPTS])
            assert [texts for texts, _ in got] == alone, codec
            if swapped(server)["in"] > 0:
                break
        assert server.metric("kvasir:swap_capacity_bytes") == 256 << 20
        seen = swapped(server)
        assert seen["in"] > 0 and seen["failed"] == 0 and seen["out"] == seen["in"], seen
        assert seen["out_bytes"] >= seen["in_bytes"] > 0, seen
        assert server.metric("kvasir:swap_used_bytes") == 0, "what came back needs no place in the file"
        assert 0 < server.metric("kvasir:swap_longest_pause_seconds") < time.monotonic() - began
        assert server.metric("kvasir:kv_peak_bytes") <= server.metric("kvasir:kv_budget_bytes")
        assert os.listdir(folder) == [], "the file has no name"
        assert server.end() == 0
        return seen


def check_small_file(kvasir, model, folder, memory, alone):
    with LiveServer(kvasir, model, "--kv-memory", memory, "--swap-dir", folder, "--swap-size", "1MiB") as server:
        for _ in range(2):
            got = crowd(server, [request(prompt) for prompt in PROMPTS])
            assert [texts for texts, _ in got] == alone, "computed again where the file has no room"
        assert server.metric("kvasir:swap_used_bytes") == 0
        assert server.metric("kvasir:num_preemptions_total") > 0
        assert server.end() == 0


def check_kill(kvasir, model, folder, memory):
    """Ends a server at the moment in which pages are out."""
    with LiveServer(kvasir, model, "--kv-memory", memory, "--swap-dir", folder, "--swap-size", "256MiB") as server:
        with concurrent.futures.ThreadPoolExecutor(len(PROMPTS)) as pool:
            # They never end, and preempt each other as long as the server lives.
            waiting = [pool.submit(answer, server, request(prompt, max_tokens=10**9)) for prompt in PROMPTS]
            wait_for(lambda: server.metric("kvasir:swap_used_bytes") > 0, "nothing was swapped")
            assert not any(one.done() for one in waiting)
            server.signal(signal.SIGKILL)
            server.process.wait()
    assert os.listdir(folder) == []
    with LiveServer(kvasir, model, "--kv-memory", memory, "--swap-dir", folder) as server:
        answer(server, request(PROMPTS[0]))
        assert server.end() == 0


def check_full_disk(kvasir, model, folder, memory, alone):
    """What cannot be written is computed again, has not left, and is logged once in a minute."""
    with LiveServer(kvasir, model, "--kv-memory", memory, "--swap-dir", folder, "--swap-size", "256MiB") as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (0, 0))
        began = time.monotonic()
        for _ in range(ROUNDS):
            got = crowd(server, [request(prompt) for prompt in PROMPTS])
            assert [texts for texts, _ in got] == alone
            if swapped(server)["failed"] > 0:
                break
        seen = swapped(server)
        assert seen["failed"] > 0 and seen["out"] == seen["in"] == 0, seen
        assert server.end() == 0
        server.reader.join()
        took = time.monotonic() - began
        said = [line for line in server.lines if " warning swap_failed " in line]
        assert 1 <= len(said) <= 1 + took // 60 and "File too large" in said[0], server.lines


def check_refusals(kvasir, model, folder):
    said = refused(kvasir, model, "--swap-dir", folder + "/missing")
    assert "--swap-dir" in said and folder + "/missing" in said and "No such file" in said, said
    said = refused(kvasir, model, "--swap-dir", __file__)
    assert "--swap-dir" in said and "ot a directory" in said, said
    said = refused(kvasir, model, "--swap-dir", folder, "--swap-size", "1000")
    assert "--swap-size" in said and "1000" in said, said
    said = refused(kvasir, model, "--swap-size", "1GiB")
    assert "--swap-size" in said and "--swap-dir" in said, said
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f'swap-dir = "{folder}/missing"\n')
        config.flush()
        said = refused(kvasir, model, "--config", config.name)
        assert config.name in said and "swap-dir" in said, said


def main(kvasir, model):
    with tempfile.TemporaryDirectory() as folder:
        check_refusals(kvasir, model, folder)
        for codec in ((), ("--kv-type", "q4")):
            with LiveServer(kvasir, model, *codec) as server:
                alone = [answer(server, request(prompt))[0] for prompt in PROMPTS]
                assert "kvasir:swap_capacity_bytes" not in " ".join(server.metrics()), "there is no such file"
                held = server.complete(**request(max(PROMPTS, key=len)))[1]["kv"]["bytes_peak"]
                assert server.end() == 0
            memory = f"{3 * held >> 10}KiB"
            seen = check_answers(kvasir, model, folder, memory, alone, *codec)
            print(f"{codec or 'f16'} on {memory}: {seen}", flush=True)
            if not codec:
                check_small_file(kvasir, model, folder, memory, alone)
                check_full_disk(kvasir, model, folder, memory, alone)
                check_kill(kvasir, model, folder, memory)


if __name__ == "__main__":
    main(*sys.argv[1:3])
