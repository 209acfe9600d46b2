"""Runs every command of README.md and docs/ as it stands: each must end with exit code 0.

Usage: commands_check.py KVASIR MODEL SOURCE_DIR [PAGE...]

Commands are the lines of fenced blocks that begin with `kvasir `, or pipe into it. Those of one page run in order, in a
folder with the files that they name (a model, texts, traces, a saved chat), on a terminal.
"""

import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

TIMEOUT = 120  # seconds a command


def commands(page):
    """Yields the line number and the text of each command, continued lines joined."""
    fenced = False
    held = ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if line.startswith("```"):
            fenced = not fenced
            continue
        if not fenced:
            continue
        line = held + line.strip()
        held = ""
        if re.match(r"kvasir |[^|]*\| *kvasir ", line):
            if line.endswith("\\"):
                held = line[:-1]
                continue
            yield number, line


def run_on_terminal(line, folder, path):
    """Returns the exit code and all output. Ends a chat as a person does, with Ctrl-D at its prompt, and a server with
    Ctrl-C; a server takes any port that is free."""
    serves = line.startswith("kvasir serve ")
    if serves:
        line += " --port 0"
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(folder)
        os.environ.update(PATH=f"{path}:{os.environ['PATH']}", TERM="xterm", HOME=str(folder))
        os.execvp("bash", ["bash", "-c", "set -o pipefail; " + line])
    output = b""
    unseen = 0
    ends = time.monotonic() + TIMEOUT
    while True:
        if time.monotonic() > ends:
            os.kill(child, signal.SIGKILL)
            output += b"\n[took too long]"
        if select.select([terminal], [], [], 1)[0]:
            try:
                read = os.read(terminal, 65536)
            except OSError:  # the other end is closed
                break
            if not read:
                break
            output += read
            if serves and b"serving " in output and not unseen:
                unseen = len(output)
                os.write(terminal, b"\x03")
            elif b"> " in output[unseen:]:
                unseen = len(output)
                os.write(terminal, b"\x04")
    os.close(terminal)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), output.decode(errors="replace")


def set_up(folder, kvasir, model, source):
    """Makes the files that commands name."""
    book = (source / "examples/the-bell-of-saint-anne.txt").read_text()
    for name in ("model.gguf", "MODEL", "SMALL.gguf"):
        os.symlink(model, folder / name)
    (folder / "book.txt").write_text(book[:18000])  # what commands measure takes as long as the text is
    (folder / "report.txt").write_text(book[:4000])
    (folder / "letter.txt").write_text(book[:1500])
    (folder / "annex.txt").write_text(book[4000:6000])
    (folder / "books").mkdir()
    for number in (1, 2, 3):
        (folder / f"books/{number}.txt").write_text(book[(number - 1) * 1000 :] * 2)
    (folder / "models").mkdir()
    run = lambda *more: subprocess.run([kvasir, *more], cwd=folder, check=True, capture_output=True)
    run("run", "-m", "MODEL", "--chat", "-p", "Hello", "-n", "5", "--save", "chat.kvs")
    run("record", "-m", "MODEL", "-f", "book.txt", "--tokens", "600", "-o", "attention.npy")
    data = source / "tests/tasks/data"
    for name in ("test", "train"):
        shutil.copy(data / f"gsm8k/{name}.jsonl", folder / f"{name}.jsonl")
    shutil.copy(data / "longbench/longbench.jsonl", folder / "qasper.jsonl")
    (folder / "my_task.json").write_text('{"prompt": "{{ q }}", "references": "a", "metrics": ["exact_match"], "max_tokens": 4}')
    (folder / "items.jsonl").write_text('{"q": "Two and two are", "a": "four"}\n')
    (folder / "grid.json").write_text('{"policies": ["full", "snapkv:budget={budget}"], "budgets": [64], "tasks": ['
                                      '{"perplexity": "book.txt", "window": 256, "windows": 2, "prefill": 128}, '
                                      '{"task": "passkey", "tokens": 600, "count": 2}]}')
    (folder / "traces").mkdir()
    shutil.copy(folder / "attention.npy", folder / "traces/layer.npy")


def main():
    kvasir, model, source = (pathlib.Path(argument).resolve() for argument in sys.argv[1:4])
    pages = [pathlib.Path(page).resolve() for page in sys.argv[4:]]
    pages = pages or [source / "README.md", *sorted((source / "docs/operations").glob("*.md")), source / "docs/policies/README.md"]
    tried = failed = 0
    for page in pages:
        with tempfile.TemporaryDirectory() as name:
            folder = pathlib.Path(name)
            lines = list(commands(page))
            if lines:
                set_up(folder, kvasir, model, source)
            for number, line in lines:
                began = time.monotonic()
                code, output = run_on_terminal(line, folder, kvasir.parent)
                tried += 1
                print(f"{page.relative_to(source)}:{number}: {time.monotonic() - began:.1f} s: {line}", flush=True)
                if code != 0:
                    failed += 1
                    print(f"  exit code {code}:\n{output[-1500:]}", flush=True)
    print(f"{tried} commands, {failed} failed")
    if failed or (len(sys.argv) == 4 and tried < 40):
        sys.exit(1)


if __name__ == "__main__":
    main()
