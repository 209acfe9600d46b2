"""Runs a sample of the commands beside figures of the docs again, and compares.

  figures_check.py KVASIR SOURCE

figures.json lists the sample: a page, a text of it, the figure within that text, the command that gives it, and where in the
command's JSON. `{books}` stands for the folder of books, KVASIR_SHARED/text, and `{model}` for SmolLM2-135M-Instruct. A figure holds where it differs
by at most `within` of itself (kernels differ in the last digits), or by half a unit of its last digit. Skips without the model or
the books.
"""
import json
import os
import pathlib
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))

from real_model import real_model_or_skip  # noqa: E402


def value_of(output, path):
    for key in path:
        output = output[key]
    return output


def main():
    kvasir, source = sys.argv[1], pathlib.Path(sys.argv[2])
    books = pathlib.Path(os.environ.get("KVASIR_SHARED") or source.parent / "shared") / "text"
    sample = json.loads((source / "tests/docs/figures.json").read_text())
    wrong = []
    for one in sample:
        page = " ".join((source / one["page"]).read_text().split())
        if one["text"] not in page or one["figure"] not in one["text"]:
            wrong.append(f"{one['page']} no longer says '{one['text']}'")
    if wrong:
        sys.exit("\n".join(wrong))
    model = real_model_or_skip()
    if not books.exists():
        print(f"needs the books of KVASIR_SHARED/text; {len(sample)} figures stand where figures.json says")
        sys.exit(77)
    for one in sample:
        command = [kvasir, *(part.format(model=model, books=books) for part in one["command"])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            wrong.append(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
            continue
        found = value_of(json.loads(done.stdout), one["value"])
        shown = float(one["figure"].replace(",", "").rstrip("%")) / (100 if one["figure"].endswith("%") else 1)
        digits = len(one["figure"].rstrip("%").partition(".")[2]) + (2 if one["figure"].endswith("%") else 0)
        if abs(found - shown) > max(one["within"] * abs(shown), 0.5000001 * 10.0**-digits):
            wrong.append(f"{one['page']} says {one['figure']} in '{one['text']}', and the command gives {found:.6g}")
        else:
            print(f"{one['page']}: {one['figure']}: {found:.6g}")
    if wrong:
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
