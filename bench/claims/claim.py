"""What a claim is, and how its runs are executed and kept."""
import dataclasses
import hashlib
import json
import os
import pathlib
import shlex
import subprocess
import sys
import time


@dataclasses.dataclass
class Claim:
    """One sentence of a source that can be measured here.

    `runs` maps a name to the arguments of `kvasir` (a list), or of another program (a list whose first element is a path
    with a slash). `{model}`, `{mini}` and `{books}` are replaced. It may be a function that makes the map from those values.
    `needs` names optional inputs without which the claim is left out. `ours` and `verdict` get the outputs by name: a parsed
    object where the program printed JSON, else text. `verdict` returns "agrees", "disagrees", "mixed" or "open". `reason` is a text, or
    a function of the outputs where it has figures.
    """
    name: str
    source: str
    says: str
    runs: dict
    ours: object
    verdict: object
    reason: object = ""
    needs: tuple = ()

    def runs_of(self, values):
        return self.runs(values) if callable(self.runs) else self.runs

    def why(self, found):
        return self.reason(found) if callable(self.reason) else self.reason


def digest(path):
    """Returns a digest of a file, or of the files of a folder."""
    path = pathlib.Path(path)
    hasher = hashlib.sha256()
    for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
        if file.is_file():
            hasher.update(file.name.encode())
            hasher.update(hashlib.sha256(file.read_bytes()).digest())
    return hasher.hexdigest()[:16]


def processor():
    """Returns the processor's name; empty where the system does not say."""
    try:
        lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


class Results:
    """Outputs of runs, each in a file of its own: a run that is there, with the same arguments, inputs, build and threads, is not run
    again. any_build: the build and the threads may be others."""

    def __init__(self, folder, kvasir, values, any_build=False):
        self.folder = pathlib.Path(folder)
        self.kvasir = kvasir
        self.values = values
        self.any_build = any_build
        self.digests = {}
        self.told = set()  # runs of another build
        self.folder.mkdir(parents=True, exist_ok=True)

    def argv(self, args):
        args = [str(a).format(**self.values) for a in args]
        if "/" in args[0]:
            return args
        return [self.kvasir, *args]

    def path(self, name):
        return self.folder / f"{name}.json"

    def find(self, name, args):
        """Returns a stored output, or None where the run is missing or had other arguments."""
        try:
            stored = json.loads(self.path(name).read_text())
        except (OSError, ValueError):
            return None
        if stored["args"] != list(map(str, args)) or stored.get("inputs") != self.inputs(args):
            return None
        if stored.get("program") == self.program(args):
            return stored
        if self.any_build and name not in self.told:
            self.told.add(name)
            print(f"{name}: of another build or other threads: {stored.get('program')}", file=sys.stderr)
        return stored if self.any_build else None

    def stored(self, name, args):
        """Returns what a run printed; None where it is missing."""
        found = self.find(name, args)
        return None if found is None else parsed(found["output"])

    def inputs(self, args):
        """Returns a digest of each file or folder that the arguments name by {model}, {mini}, {books} or {mmlu}."""
        used = [name for name in ("model", "mini", "books", "mmlu") if any(f"{{{name}}}" in str(arg) for arg in args)]
        for name in used:
            if name not in self.digests:
                self.digests[name] = digest(self.values[name])
        return {name: self.digests[name] for name in used}

    def program(self, args):
        """Returns what made an output besides its arguments and inputs: digests of `kvasir` and of the program that was run, kernels,
        threads and processor."""
        run = pathlib.Path(self.argv(args)[0])
        for file in {run, pathlib.Path(self.kvasir)}:
            if file not in self.digests:
                self.digests[file] = digest(file)
        return {"kvasir": self.digests[pathlib.Path(self.kvasir)], "run": self.digests[run], "threads": os.environ.get("KVASIR_THREADS") or len(os.sched_getaffinity(0)),
                "isa": os.environ.get("KVASIR_ISA", ""), "processor": processor()}

    def run(self, name, args):
        stored = self.find(name, args)
        if stored is None:
            begun = time.monotonic()
            print(f"{name}: {shlex.join(map(str, args))}", file=sys.stderr, flush=True)
            done = subprocess.run(self.argv(args), capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{name}: exit code {done.returncode}: {done.stderr.strip()[-400:]}")
            stored = {"args": list(map(str, args)), "inputs": self.inputs(args), "program": self.program(args), "seconds": round(time.monotonic() - begun, 1), "output": done.stdout}
            partial = self.path(name).with_suffix(".part")
            partial.write_text(json.dumps(stored, indent=1))
            partial.rename(self.path(name))
        return parsed(stored["output"])


def parsed(output):
    try:
        return json.loads(output)
    except ValueError:
        return output
