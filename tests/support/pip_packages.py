"""Packages from PyPI for checks against other programs: installed once beside the build, or the check is skipped."""
import contextlib
import hashlib
import pathlib
import shutil
import subprocess
import sys
import tempfile


def import_or_skip(build, name, requirements, minutes):
    """Makes packages importable that the file `requirements` pins. Where pip cannot install them, or takes more than `minutes`,
    ends the check: skipped (77)."""
    digest = hashlib.sha256(requirements.read_bytes() + sys.version.encode()).hexdigest()[:12]
    folder = build / f"{name}-{digest}"
    if not folder.exists():
        part = pathlib.Path(tempfile.mkdtemp(prefix=f".{name}-", dir=build))
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", "--no-deps",
               "--no-compile", "--only-binary", ":all:", "--timeout", "20", "--retries", "1", "--target", str(part / "new"),
               "--requirement", str(requirements)]
        try:
            ran = subprocess.run(pip, capture_output=True, text=True, timeout=60 * minutes)
            problem = None if ran.returncode == 0 else (ran.stderr.strip().splitlines() or ["pip failed"])[-1]
        except subprocess.TimeoutExpired:
            problem = f"pip took more than {minutes} minutes"
        if problem:
            shutil.rmtree(part)
            print(f"skipped: pip could not install {name} ({problem[:200]})")
            sys.exit(77)
        for old in build.glob(f"{name}-*"):
            if old != folder:
                shutil.rmtree(old, ignore_errors=True)
        with contextlib.suppress(OSError):  # another run was faster
            (part / "new").rename(folder)
        shutil.rmtree(part)
    sys.path.insert(0, str(folder))
