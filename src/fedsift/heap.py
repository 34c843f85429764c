"""Freed memory that stays with the process: a round needs as much as the round before.

The C library gives large blocks back to the system when they are freed, and every new one is then
paid for page by page: a third of a fused round of 300 lanes of 1000 features (benchmarks/seeds.py).
"""

from __future__ import annotations

import ctypes
import os
from functools import cache

# Numbers of <malloc.h>, and bytes: blocks up to the largest size that malloc keeps in its heap,
# and what may lie free at its end.
MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
LARGEST, FREE = 32 << 20, 256 << 20
OWN_CHOICE = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_", "GLIBC_TUNABLES", "LD_PRELOAD")


@cache
def keep_freed_memory() -> bool:
    """Let the C library keep up to 256 MB of freed memory for what comes next, once a process.

    Return whether it does: with glibc, and where nobody has chosen otherwise in the environment.
    """
    if any(name in os.environ for name in OWN_CHOICE):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library
        return False
    return all([mallopt(MMAP_THRESHOLD, LARGEST), mallopt(TRIM_THRESHOLD, FREE)])
