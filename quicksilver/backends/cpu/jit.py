"""The numba decorators of this package. Use these and not numba's own.

Importing this module sets the folder of the machine-code cache, which must happen before the first compilation.
"""

from __future__ import annotations

from numba import njit

from quicksilver.backends.cpu.support import set_code_cache

set_code_cache()

# Sums may be split into vector lanes. NaN and infinity keep their meaning.
_FAST_MATH = {"reassoc", "contract", "nsz", "arcp"}

# For functions that only compiled code calls.
inner = njit(nogil=True, error_model="numpy", fastmath=_FAST_MATH)
# For functions that Python calls; their machine code, with everything they call, is cached on disk.
entry = njit(nogil=True, error_model="numpy", fastmath=_FAST_MATH, cache=True)
