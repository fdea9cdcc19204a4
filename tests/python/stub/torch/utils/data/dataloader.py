"""A loader that takes `seconds` a batch."""

import time


class _BaseDataLoaderIter:
    def __init__(self, loader):
        self._left, self._seconds = loader.batches, loader.seconds

    def __iter__(self):
        return self

    def __next__(self):
        time.sleep(self._seconds)
        if self._left == 0:
            raise StopIteration
        self._left -= 1
        return self._left


class _SingleProcessDataLoaderIter(_BaseDataLoaderIter):
    pass


class DataLoader:
    def __init__(self, batches, seconds=0.0):
        self.batches, self.seconds = batches, seconds

    def __iter__(self):
        return _SingleProcessDataLoaderIter(self)
