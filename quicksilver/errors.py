"""One exception tree. Each error knows its HTTP status, OpenAI `type` and `code`, and says what to do next.

Raised at the edges (bad input, missing weights, a dead worker); `assert` is only for our own invariants.
"""

from __future__ import annotations


class QuicksilverError(Exception):
    """The root: everything this package raises on purpose."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequest(QuicksilverError):
    """The caller's input cannot be honoured; `param` names the field."""

    status = 400
    type = "invalid_request_error"
    code = "invalid_value"


class ContextTooLong(InvalidRequest):
    """Prompt and answer do not fit the context."""

    code = "context_length_exceeded"


class InvalidGrammar(InvalidRequest):
    """A schema, regex or grammar that cannot be enforced; the message names the keyword."""

    code = "invalid_json_schema"


class AuthenticationFailed(QuicksilverError):
    """No key, or not a valid one."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(QuicksilverError):
    """A valid key that may not do this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFound(QuicksilverError):
    """No such object, or somebody else's: the two look alike."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """No such model here."""

    code = "model_not_found"


class Conflict(QuicksilverError):
    """The same idempotency key is in flight."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class BodyTooLarge(QuicksilverError):
    """Refused before parsing."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class IdempotencyMismatch(QuicksilverError):
    """The same idempotency key came with another body."""

    status = 422
    type = "invalid_request_error"
    code = "idempotency_mismatch"


class RateLimited(QuicksilverError):
    """Too many requests or tokens in the window; retry after `retry_after_s`."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, param: str | None = None) -> None:
        super().__init__(message, param=param)
        self.retry_after_s = retry_after_s


class InsufficientQuota(QuicksilverError):
    """Credits or budget are spent; retrying does not help."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"


class Unavailable(QuicksilverError):
    """Right request, wrong moment: retry after `retry_after_s`."""

    status = 503
    type = "server_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class EngineUnavailable(Unavailable):
    """The worker is starting, or the queue is full."""

    code = "engine_unavailable"


class EngineDied(Unavailable):
    """The worker died under this request; a new one is being started."""

    code = "engine_died"


class CompilerUnavailable(Unavailable):
    """No process can compile the grammar now; the grammar itself has not been judged."""

    code = "compiler_unavailable"


class LedgerUnavailable(Unavailable):
    """The books cannot be written, so nothing paid is served."""

    code = "ledger_unavailable"


class RowFailed(QuicksilverError):
    """This request's rows raised or turned non-finite; its neighbours went on."""

    code = "row_failed"


class OutputInvalid(QuicksilverError):
    """The finished output does not satisfy the request's own schema; the same request would fail again."""

    status = 422
    type = "invalid_request_error"
    code = "output_invalid"


class CheckpointRefused(QuicksilverError):
    """A weight file that is damaged, hostile, or of a kind that is never loaded; the message says which and why."""

    status = 400
    type = "invalid_request_error"
    code = "checkpoint_refused"
