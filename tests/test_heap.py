"""Memory that is freed and needed again is not paid for again, unless the user has chosen so."""

import os
import platform
import subprocess
import sys

import pytest

ROUNDS, BLOCK = 50, 8 << 20
CODE = f"""
import resource
import torch
from fedsift.heap import keep_freed_memory

kept = keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(8):
    torch.ones({BLOCK} // 4).add(1.0)
before = faults()
for _ in range({ROUNDS}):
    torch.ones({BLOCK} // 4).add(1.0)
print(int(kept), faults() - before)
"""


def faults(**environment: str) -> tuple[bool, int]:
    chosen = {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"} | environment
    done = subprocess.run(
        [sys.executable, "-c", CODE], env=chosen, check=True, capture_output=True, text=True
    )
    kept, count = done.stdout.split()
    return bool(int(kept)), int(count)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")
def test_freed_memory_is_kept_for_the_next_round():
    kept, few = faults()
    chosen, many = faults(MALLOC_MMAP_THRESHOLD_="131072")
    assert kept
    assert not chosen
    pages = ROUNDS * BLOCK // 4096
    assert many > pages  # two blocks a round
    assert few < pages // 10
