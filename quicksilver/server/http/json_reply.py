"""JSON replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from starlette.responses import Response


def json_response(payload: Mapping[str, Any], headers: Mapping[str, str] | None = None, status: int = 200) -> Response:
    return Response(orjson.dumps(payload), status, headers, media_type="application/json")
