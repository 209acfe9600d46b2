"""What a claim is, and how its runs are executed and kept."""
import dataclasses
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
    object where the program printed JSON, else text. `verdict` returns "agrees", "disagrees" or "open".
    """
    name: str
    source: str
    says: str
    runs: dict
    ours: object
    verdict: object
    reason: str = ""
    needs: tuple = ()

    def runs_of(self, values):
        return self.runs(values) if callable(self.runs) else self.runs


class Results:
    """Outputs of runs, each in a file of its own: a run that is there is not run again."""

    def __init__(self, folder, kvasir, values):
        self.folder = pathlib.Path(folder)
        self.kvasir = kvasir
        self.values = values
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
        return stored if stored["args"] == list(map(str, args)) else None

    def stored(self, name):
        """Returns what a run printed, whatever its arguments were; None where it is missing."""
        try:
            return parsed(json.loads(self.path(name).read_text())["output"])
        except (OSError, ValueError):
            return None

    def run(self, name, args):
        stored = self.find(name, args)
        if stored is None:
            begun = time.monotonic()
            print(f"{name}: {shlex.join(map(str, args))}", file=sys.stderr, flush=True)
            done = subprocess.run(self.argv(args), capture_output=True, text=True)
            if done.returncode != 0:
                raise RuntimeError(f"{name}: exit code {done.returncode}: {done.stderr.strip()[-400:]}")
            stored = {"args": list(map(str, args)), "seconds": round(time.monotonic() - begun, 1), "output": done.stdout}
            partial = self.path(name).with_suffix(".part")
            partial.write_text(json.dumps(stored, indent=1))
            partial.rename(self.path(name))
        return parsed(stored["output"])


def parsed(output):
    try:
        return json.loads(output)
    except ValueError:
        return output
