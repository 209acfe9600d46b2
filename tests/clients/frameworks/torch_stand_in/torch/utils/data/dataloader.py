from typing import Generic, TypeVar

Item = TypeVar("Item")


class DataLoader(Generic[Item]):
    """Yields the items of a data set in their order, loaded by this process."""

    def __init__(self, dataset, collate_fn, **_):
        self.dataset = dataset
        self._collate = collate_fn

    def __iter__(self):
        return (self._collate([item]) for item in self.dataset)
