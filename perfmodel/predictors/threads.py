"""One BLAS thread: matrices of a few dozen rows only lose by more, tenfold on a busy machine."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import lru_cache

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


@lru_cache(maxsize=1)
def _controller() -> ThreadpoolController:
    """Finding the libraries takes milliseconds, so it is done once."""
    return ThreadpoolController().select(user_api="blas")


def one_blas_thread() -> AbstractContextManager[object]:
    """While entered, numpy and scipy calculate in the calling thread alone."""
    limit: AbstractContextManager[object] = _controller().limit(limits=1)
    return limit
