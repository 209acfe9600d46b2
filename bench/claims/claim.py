"""What a claim is, and how its runs are executed and kept."""
import dataclasses
import hashlib
import json
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
    object where the program printed JSON, else text. `verdict` returns "agrees", "disagrees" or "open". `reason` is a text, or
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


class Results:
    """Outputs of runs, each in a file of its own: a run that is there, with the same arguments and inputs, is not run again."""

    def __init__(self, folder, kvasir, values):
        self.folder = pathlib.Path(folder)
        self.kvasir = kvasir
        self.values = values
        self.digests = {}
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
        same = stored["args"] == list(map(str, args)) and stored.get("inputs") == self.inputs(args)
        return stored if same else None

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

    def run(self, name, args):
        stored = self.find(name, args)
        if stored is None:
            begun = time.monotonic()
            print(f"{name}: {shlex.join(map(str, args))}", file=sys.stderr, flush=True)
            done = subprocess.run(self.argv(args), capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{name}: exit code {done.returncode}: {done.stderr.strip()[-400:]}")
            stored = {"args": list(map(str, args)), "inputs": self.inputs(args), "seconds": round(time.monotonic() - begun, 1), "output": done.stdout}
            partial = self.path(name).with_suffix(".part")
            partial.write_text(json.dumps(stored, indent=1))
            partial.rename(self.path(name))
        return parsed(stored["output"])


def parsed(output):
    try:
        return json.loads(output)
    except ValueError:
        return output
