"""Guard: the outermost ASGI layer. Admits or refuses each request, counts it while it is open, and records it.

Runs before routing and authentication and never reads a body. An unexpected exception becomes a plain 500 here.
"""

from __future__ import annotations

import logging
import traceback

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from quicksilver.errors import QuicksilverError
from quicksilver.server.http.access_log import RequestRecord
from quicksilver.server.http.admission import ALWAYS_ANSWERED, check_admission
from quicksilver.server.http.errors import error_response, internal_error
from quicksilver.server.services import Services

log = logging.getLogger("quicksilver.server")

# Of a request whose client closed the connection before the reply started; never sent.
CLIENT_CLOSED = 499


class Guard:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        services: Services = scope["app"].state.services
        tracing = services.tracing if scope["path"] not in ALWAYS_ANSWERED else None
        record = RequestRecord(scope, send, tracing.begin(scope) if tracing is not None else None)
        with services.open_requests.counted(), services.metrics.num_open.track_inprogress():
            try:
                check_admission(scope, services)
                await self.app(scope, receive, record.send)
            except ClientDisconnect:
                record.status = record.status or CLIENT_CLOSED
            except Exception as error:
                refusal = as_refusal(error, record.id)
                if record.status is None:
                    # The rest of the request may still be on its way, so the connection is not used again.
                    response = error_response(refusal, {"connection": "close"}, scope["path"], record.id)
                    await response(scope, receive, record.send)
            finally:
                record.write(services.metrics)


def as_refusal(error: Exception, request_id: str) -> QuicksilverError:
    """The reply's error. An unexpected exception is logged by type and place; its message may quote a prompt."""
    if isinstance(error, QuicksilverError):
        return error
    place = "".join(traceback.format_tb(error.__traceback__))
    log.error("unexpected %s\n%s", type(error).__name__, place, extra={"request_id": request_id})
    return internal_error()
