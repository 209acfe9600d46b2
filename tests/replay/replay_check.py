"""Checks `kvasir replay` against oracle.py: replay_check.py KVASIR_BINARY

--self      checks the oracle itself against facts worked out by hand
--example   checks the oracle against traces/example.json of the optional data (KVASIR_SHARED, or ../shared beside the
            project)

Exits with 77 (skipped) without NumPy, and where there is no optional data.
"""

import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
except ImportError:
    print("NumPy is not installed")
    sys.exit(77)

import cases
import facts
import oracle

FIGURES = ("layer", "kept_mean", "kept_max", "recall", "prunes")


def differences(want, got, where):
    """Sentences on the figures of `want` that are not so in `got`; both a layer or a KV head of one."""
    relative, absolute = {"recall": 1e-6}, {"kept_mean": 1e-9}
    for key in [key for key in FIGURES if key in want]:
        value = got.get(key)
        if not isinstance(value, (int, float)) or not math.isclose(
            want[key], value, rel_tol=relative.get(key, 0), abs_tol=absolute.get(key, 0)
        ):
            yield f"{where}: {key} {value!r}, expected {want[key]!r}"


def different_ids(want, got, where):
    if not isinstance(got, list):
        yield f"{where}: no final"
    elif got != want:
        missing, extra = sorted(set(want) - set(got)), sorted(set(got) - set(want))
        more = " and more" if max(len(missing), len(extra)) > 8 else ""
        yield f"{where}: {len(got)} ids, expected {len(want)}; lacks {missing[:8]}, has {extra[:8]} instead{more}" + (
            "" if missing or extra else " (order)"
        )


def layer_differences(want, got):
    where = f"layer {want['layer']}"
    yield from differences(want, got, where)
    if "heads" not in want:
        yield from different_ids(want["final"], got.get("final"), where)
        return
    heads = got.get("heads", [])
    if len(heads) != len(want["heads"]):
        yield f"{where}: {len(heads)} heads, expected {len(want['heads'])}"
        return
    for index, (mine, its) in enumerate(zip(want["heads"], heads)):
        at = f"{where}, KV head {index}"
        yield from different_ids(mine["final"], its.get("final"), at)
        # A head's own figures are optional.
        yield from differences({key: value for key, value in mine.items() if key in its}, its, at)


def run_replay(binary, arguments):
    return subprocess.run([binary, "replay", *arguments], capture_output=True, text=True, timeout=900, check=False)


def disagreements(binary, case, trace, file):
    """Sentences on where the program and the oracle disagree."""
    done = run_replay(binary, ["--policy", case.policy, "--trace", str(file), *case.options(), "--json"])
    if done.returncode != 0:
        return [f"exit status {done.returncode}: {done.stderr.strip()}"]
    try:
        layers = json.loads(done.stdout)["layers"]
    except (ValueError, KeyError, TypeError):
        return [f"no layers in the output: {done.stdout[:200]!r}"]
    want = oracle.replay(case.policy, trace, case.prefill, case.chunk, case.kv_heads)["layers"]
    if len(layers) != len(want):
        return [f"{len(layers)} layers, expected {len(want)}"]
    return [line for mine, its in zip(want, layers) for line in layer_differences(mine, its)]


def refusal(binary, spec, expected, file):
    """What is wrong with how a spec was refused, or nothing."""
    done = run_replay(binary, ["--policy", spec, "--trace", str(file), "--json"])
    if done.returncode == 0:
        return "was accepted"
    if done.returncode < 0:
        return f"ended by signal {-done.returncode}"
    if not done.stderr.strip() or expected not in done.stderr:
        return f"refused without naming '{expected}': {done.stderr.strip()!r}"
    return None


def check_binary(binary):
    failed = 0
    traces = cases.traces()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for trace, weights in traces.items():
            np.save(folder / f"{trace}.npy", weights)
        for case in cases.CASES:
            lines = disagreements(binary, case, traces[case.trace], folder / f"{case.trace}.npy")
            failed += bool(lines)
            if lines:
                print(case, *lines, sep="\n    ")
        for spec, expected in cases.REFUSED:
            wrong = refusal(binary, spec, expected, folder / "uniform.npy")
            failed += wrong is not None
            if wrong:
                print(f"{spec} {wrong}")
    print(f"{len(cases.CASES)} cases and {len(cases.REFUSED)} refusals, {failed} disagree")
    return 1 if failed else 0


def check_example():
    beside = pathlib.Path(os.environ.get("KVASIR_SOURCE_DIR", ".")) / ".." / "shared"
    folder = pathlib.Path(os.environ.get("KVASIR_SHARED", beside)) / "traces"
    if not (folder / "example.json").exists():
        print("needs traces/example.json (set KVASIR_SHARED to its folder)")
        return 77
    trace = np.load(folder / "example.npy")
    failed = False
    for spec, result in json.loads((folder / "example.json").read_text()).items():
        mine = oracle.replay(spec, trace)["layers"]
        # The example does not number its layers.
        expected = [{"layer": index, **layer} for index, layer in enumerate(result["layers"])]
        lines = [line for want, got in zip(expected, mine) for line in layer_differences(want, got)]
        failed |= bool(lines) or len(expected) != len(mine)
        print(spec, *(lines or ["agrees"]), sep="\n    ")
    return 1 if failed else 0


def main():
    if len(sys.argv) != 2:
        print(__doc__)
        return 2
    if sys.argv[1] == "--self":
        return facts.run()
    if sys.argv[1] == "--example":
        return check_example()
    return check_binary(sys.argv[1])


if __name__ == "__main__":
    sys.exit(main())
