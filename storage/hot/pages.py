"""Memory from the system and back to it, past an allocator that keeps what it once had.

glibc serves arrays below 32 MB from what was freed before, which `calloc` must then clear, so that
the part of an array that is never used costs as much as the rest. And an index that is replaced
frees some hundred thousand small pieces, which glibc keeps: after a graph has grown to its size
that is a fifth of what the process seems to use.
"""

from __future__ import annotations

import ctypes
import math
import mmap
import sys
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray


def untouched(dtype: DTypeLike, *shape: int) -> NDArray[Any]:
    """Zeros that cost memory page by page as they are written, and are given back whole."""
    size = math.prod(shape) * np.dtype(dtype).itemsize
    pages = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, dtype).reshape(shape)


def _found() -> Any:
    if sys.platform != "linux":
        return None
    return getattr(ctypes.CDLL(None), "malloc_trim", None)


_TRIM: Final = _found()


def give_back() -> None:
    """Return free pages to the system, where the C library can; the interpreter goes on."""
    if _TRIM is not None:
        _TRIM(0)
