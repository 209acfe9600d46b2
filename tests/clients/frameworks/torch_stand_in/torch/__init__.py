"""Stands in for PyTorch, of which GuideLLM uses one class: the loader that reads its prompts. Saves 3 GB of packages."""
from . import utils  # noqa: F401


class Generator:
    def manual_seed(self, seed):
        return self
