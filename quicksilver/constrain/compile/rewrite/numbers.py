"""Numbers and listed values that llguidance does not represent exactly.

It holds bounds as doubles and ranges as 64-bit integers. Larger bounds are tightened, never widened, and values that
would change are refused.
"""

from __future__ import annotations

import math
from decimal import Decimal
from typing import Any

from quicksilver.constrain.compile.rewrite.ecma import is_writable
from quicksilver.constrain.compile.rewrite.refusal import Unenforceable

# The largest bound that is both a double and a 64-bit integer.
LARGEST = 2**63 - 1024
EXACT = 2**53
# Decimal digits that every double holds.
DOUBLE_DIGITS = 15
NEAR_ZERO = 1e-15
BOUNDS = ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")


def exact_bounds(schema: dict[str, Any], at: str) -> dict[str, Any]:
    """`schema` with number bounds that llguidance represents exactly."""
    exact = {word: tightened(word, value, at) if word in BOUNDS else value for word, value in schema.items()}
    return without_integer_edges(exact) | precise_multiples(schema)


def without_integer_edges(schema: dict[str, Any]) -> dict[str, Any]:
    """`schema` without exclusive bounds at an integer: from 1 (exclusive) to 1.5, llguidance admits `1`. The bound
    becomes the next double, or near zero one of few digits."""
    low, high = schema.get("exclusiveMinimum"), schema.get("exclusiveMaximum")
    moved: dict[str, Any] = {}
    if low is not None and low >= 0 and float(low).is_integer():
        moved["exclusiveMinimum"] = math.nextafter(low, math.inf) if low else NEAR_ZERO
    if high is not None and high <= 0 and float(high).is_integer():
        moved["exclusiveMaximum"] = math.nextafter(high, -math.inf) if high else -NEAR_ZERO
    return schema | {word: bound for word, bound in moved.items() if not bound.is_integer()}


def precise_multiples(schema: dict[str, Any]) -> dict[str, Any]:
    """Bounds for multiples of a fraction. Readers round a number of more digits than a double holds, and the rounded
    number is no multiple."""
    step = schema.get("multipleOf", 1)
    if float(step).is_integer():
        return {}
    limit = 10.0 ** (DOUBLE_DIGITS + int(Decimal(str(step)).as_tuple().exponent))
    low, high = schema.get("minimum", -limit), schema.get("maximum", limit)
    return {"minimum": max(low, -limit), "maximum": min(high, limit)}


def tightened(word: str, bound: float, at: str) -> float:
    """The nearest exact bound on the safe side."""
    is_lower = word in ("minimum", "exclusiveMinimum")
    if bound >= LARGEST if is_lower else bound <= -LARGEST:
        raise Unenforceable(word, at, f"bounds beyond {LARGEST} are not supported")
    if abs(bound) >= LARGEST:
        return -LARGEST if is_lower else LARGEST
    if isinstance(bound, float) or abs(bound) <= EXACT:
        return bound
    nearest = float(bound)
    if nearest < bound and is_lower:
        nearest = math.nextafter(nearest, math.inf)
    if nearest > bound and not is_lower:
        nearest = math.nextafter(nearest, -math.inf)
    return int(nearest)


def require_exact_values(values: list[Any], at: str) -> None:
    """Raises Unenforceable for values of `enum` and `const` that llguidance would change."""
    for value in values:
        if isinstance(value, list | dict):
            require_exact_values(list(value.values()) if isinstance(value, dict) else value, at)
        elif isinstance(value, int | float) and not isinstance(value, bool) and abs(value) > EXACT:
            raise Unenforceable("enum", at, f"numbers beyond {EXACT} lose digits in common JSON readers")
        elif isinstance(value, str) and not is_writable(value):
            raise Unenforceable("enum", at, "control characters cannot be written")
