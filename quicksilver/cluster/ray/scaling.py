"""num_replicas: the autoscaling policy of Ray Serve, which runs in its controller.

Requests do not pass through Ray, so replicas report how many they have open.
"""

from __future__ import annotations

from typing import Any

# The figure that replicas report.
OPEN = "open"


def num_replicas(context: Any) -> tuple[float, dict[str, Any]]:
    """The replicas that would have their target of open requests. Ray Serve applies the bounds and the delays."""
    reported = (context.aggregated_metrics or {}).get(OPEN, {})
    if not reported:
        return context.target_num_replicas, {}
    return sum(reported.values()) / context.config.get_target_ongoing_requests(), {}
