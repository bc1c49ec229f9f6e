"""Memory goes back to the system when large blocks are freed."""

from __future__ import annotations

import subprocess
import sys

import pytest

from forebay_schemas.runtime.allocator import give_back_large_blocks

# A block of 30 MB, once freed, has glibc keep later ones in the heap, where a small one behind them keeps all.
_PROGRAM = """
import ctypes, sys
from pathlib import Path
from forebay_schemas.runtime.allocator import give_back_large_blocks
malloc, free = ctypes.CDLL(None).malloc, ctypes.CDLL(None).free
malloc.restype, malloc.argtypes, free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
def resident_mib():
    return int(Path("/proc/self/status").read_text().partition("VmRSS:")[2].split()[0]) / 1024
if sys.argv[1] == "yes":
    assert give_back_large_blocks({})
free(malloc(30_000_000))
before, blocks = resident_mib(), []
for _ in range(20):
    block = malloc(4_000_000)
    ctypes.memset(block, 1, 4_000_000)
    blocks.append(block)
behind = [malloc(100_000) for _ in range(20)]
full = resident_mib()
for block in blocks:
    free(block)
print(full - before, resident_mib() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
@pytest.mark.parametrize("asked", ["yes", "no"])
def test_freed_blocks_are_given_back_and_would_not_be_otherwise(asked: str) -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM, asked], capture_output=True, text=True, check=True)
    full, left = map(float, done.stdout.split())
    assert full > 70
    assert left < 5 if asked == "yes" else left > 50


@pytest.mark.parametrize("variable", ["MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"])
def test_what_the_environment_says_of_it_wins(variable: str) -> None:
    assert not give_back_large_blocks({variable: "131072"})
