from .dataset import IterableDataset  # noqa: F401


def get_worker_info():
    """Returns None, as PyTorch does in a process that loads for itself."""
