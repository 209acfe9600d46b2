"""SmolLM2-135M-Instruct for checks in Python: the rule of real_model.h."""
import os
import pathlib
import sys


def real_model():
    """Returns the path where the model is looked for."""
    if os.environ.get("KVASIR_REAL_MODEL"):
        return pathlib.Path(os.environ["KVASIR_REAL_MODEL"])
    cache = os.environ.get("KVASIR_CACHE")
    base = os.environ.get("XDG_CACHE_HOME")
    folder = pathlib.Path(cache) if cache else (pathlib.Path(base) if base else pathlib.Path.home() / ".cache") / "kvasir"
    return folder / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"


def real_model_or_skip():
    """Returns the model's path. Without the model it ends the check: skipped (77), or failed where it is required."""
    path = real_model()
    if path.exists():
        return path
    if os.environ.get("KVASIR_REQUIRE_REAL_MODEL") == "1":
        sys.exit(f"KVASIR_REQUIRE_REAL_MODEL is 1, but there is no {path}")
    print(f"needs {path} (scripts/run downloads it; KVASIR_REAL_MODEL names another place)")
    sys.exit(77)
