"""The numba decorators of this package. Use these and not numba's own.

Importing this module sets the folder of the machine-code cache, which must happen before the first compilation.
"""

from __future__ import annotations

from numba import njit

from quicksilver.backends.cpu.support import set_code_cache

set_code_cache()

# Sums may be split into vector lanes. NaN and infinity keep their meaning.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}
# Without numba's runtime, compiled code cannot allocate arrays and does not count references: the caller owns all
# arrays. Counting them took a tenth of a forward of one row, because all threads update the same counts atomically.
_OPTIONS = {"nogil": True, "error_model": "numpy", "fastmath": _FAST_MATH, "_nrt": False}

# For functions that only compiled code calls.
inner = njit(**_OPTIONS)
# For functions that Python calls; their machine code, with everything they call, is cached on disk.
entry = njit(cache=True, **_OPTIONS)
