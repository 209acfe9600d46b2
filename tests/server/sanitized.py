"""Runs a check of a server that is built with sanitizers, and fails on any report of theirs: sanitized.py CHECK ARGUMENTS...

Reports go to files, as a check may end a server in any way and need not look at what it says.
"""

import glob
import os
import subprocess
import sys
import tempfile


def main(check, *arguments):
    with tempfile.TemporaryDirectory() as folder:
        # The leak sanitizer belongs to the address sanitizer. A thread sanitizer's report does not end the program.
        options = {name: f"{os.environ.get(name, '')}:log_path={folder}/report" for name in
                   ("TSAN_OPTIONS", "ASAN_OPTIONS", "UBSAN_OPTIONS")}
        options["UBSAN_OPTIONS"] += ":print_stacktrace=1"
        code = subprocess.run([sys.executable, check, *arguments], env={**os.environ, **options}).returncode
        reports = sorted(glob.glob(folder + "/report*"))
        for report in reports:
            with open(report, errors="replace") as file:
                print(file.read()[:20000])
    if reports:
        print(f"{len(reports)} processes had reports of a sanitizer")
        return 1
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
