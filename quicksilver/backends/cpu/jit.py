"""How functions here are compiled. Import the decorators from here, never numba's own: this module decides where
machine code is kept, and it must do so before the first function is compiled.
"""

from __future__ import annotations

from numba import njit

from quicksilver.backends.cpu.support import keep_compiled_code

keep_compiled_code()

_FAST = {"reassoc", "contract", "nsz", "arcp"}
"""Sums may be cut into lanes; not-a-number and infinity keep their meaning."""

inner = njit(nogil=True, error_model="numpy", fastmath=_FAST)
"""For functions that only compiled code calls."""
entry = njit(nogil=True, error_model="numpy", fastmath=_FAST, cache=True)
"""For functions that Python calls; their machine code, with all that they call, outlives the process."""
