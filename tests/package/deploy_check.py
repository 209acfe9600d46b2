"""What can be checked of deploy/ without a container engine and without a running systemd:
deploy_check.py KVASIR MODEL SOURCE_DIR

The container file's sources and packages exist, its process is not root, and its health check tells a live server from
none. systemd accepts the unit and finds it hardened.
"""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

KNOWN = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK", "ENTRYPOINT", "CMD"}


def instructions(path):
    """Yields (keyword, rest) of each instruction, continued lines joined."""
    text = re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)
    for line in re.sub(r"\\\n\s*", " ", text).splitlines():
        if line.strip():
            keyword, _, rest = line.partition(" ")
            assert keyword in KNOWN, line
            yield keyword, rest.strip()


def check_container(source, kvasir, model):
    parts = list(instructions(source / "deploy/container/Containerfile"))
    stages = [i for i, (keyword, _) in enumerate(parts) if keyword == "FROM"]
    assert len(stages) == 2 and all(parts[i][1].startswith("debian:12-slim") for i in stages)
    copied = []
    for keyword, rest in parts:
        if keyword == "COPY":
            *names, _ = rest.split()
            copied += names
    assert copied and all((source / name).exists() for name in copied), copied
    # What the build reads of the top folder.
    needed = re.findall(r"^(?:include|add_subdirectory)\((\w+)", (source / "CMakeLists.txt").read_text(), re.MULTILINE)
    needed = [name for name in needed if (source / name).is_dir() and name not in ("tests", "bench", "fuzz")]
    assert {"cmake", "src"} <= set(needed) <= set(copied), needed
    last = dict(parts[stages[1]:])
    assert last["USER"] == "kvasir" and last["STOPSIGNAL"] == "SIGTERM"
    assert json.loads(last["ENTRYPOINT"]) == ["kvasir"] and json.loads(last["CMD"])[0] == "serve"
    packages = re.findall(r'install_packages "\$\{build_packages\[@\]\}" ([\w .+-]+)', parts[3][1])[0].split()
    packages += subprocess.run(["bash", "-c", 'source scripts/lib.sh; echo "${build_packages[@]}"'], cwd=source,
                               capture_output=True, text=True, check=True).stdout.split()
    if shutil.which("apt-cache"):
        # Without package lists those that are installed are known.
        said = subprocess.run(["apt-cache", "policy", *packages], capture_output=True, text=True, check=True).stdout
        known = set(re.findall(r"^([\w.+-]+):", said, re.MULTILINE))
        assert known >= set(packages), set(packages) - known
    command = json.loads(last["HEALTHCHECK"].split("CMD", 1)[1])
    sys.path.insert(0, str(source / "tests/server"))
    from live_server import LiveServer

    def healthy(port):
        return subprocess.run([command[0], command[1], command[2].replace("8080", str(port))],
                              capture_output=True).returncode == 0

    with LiveServer(kvasir, model) as server:
        assert healthy(server.port)
        assert server.end() == 0
        assert not healthy(server.port)
    print(f"container file: {len(copied)} sources, {len(packages)} packages, and its health check works; not built")


def check_unit(source, kvasir):
    if not shutil.which("systemd-analyze"):
        print("systemd-analyze is missing: the unit is not checked")
        return
    text = (source / "deploy/systemd/kvasir.service").read_text()
    with tempfile.TemporaryDirectory() as folder:
        unit = os.path.join(folder, "kvasir.service")
        with open(unit, "w", encoding="utf-8") as file:
            file.write(text.replace("/usr/bin/kvasir", kvasir))
        # man:kvasir-serve(1) need not be installed.
        done = subprocess.run(["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True)
        said = [line for line in done.stderr.splitlines() if "kvasir.service" in line]
        assert done.returncode == 0 and not said, done.stderr
        done = subprocess.run(["systemd-analyze", "security", "--offline=yes", "--no-pager", unit], capture_output=True,
                              text=True)
        level = float(re.search(r"Overall exposure level for kvasir.service: ([\d.]+)", done.stdout)[1])
        print(f"systemd unit: exposure level {level} of 10")
        assert level < 2


if __name__ == "__main__":
    check_unit(pathlib.Path(sys.argv[3]), sys.argv[1])
    check_container(pathlib.Path(sys.argv[3]), *sys.argv[1:3])
