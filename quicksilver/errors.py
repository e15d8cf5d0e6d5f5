"""All exceptions of this package, each with its HTTP status and OpenAI's `type` and `code`.

They report bad input, missing weights or a dead worker, and the message says what to do. `assert` checks invariants of
our own code.
"""

from __future__ import annotations


class QuicksilverError(Exception):
    """Base class."""

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
    """The input is invalid or cannot be honoured; `param` names the field."""

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
    """The API key is missing or invalid."""

    status = 401
    type = "authentication_error"
    code = "invalid_api_key"


class PermissionDenied(QuicksilverError):
    """The API key is valid but lacks the scope for this."""

    status = 403
    type = "permission_error"
    code = "permission_denied"


class NotFound(QuicksilverError):
    """No such object, or an object of another tenant: the reply is the same."""

    status = 404
    type = "invalid_request_error"
    code = "not_found"


class ModelNotFound(NotFound):
    """This server does not serve the model."""

    code = "model_not_found"


class Conflict(QuicksilverError):
    """A request with the same idempotency key is in flight."""

    status = 409
    type = "invalid_request_error"
    code = "conflict"


class BodyTooLarge(QuicksilverError):
    """The request body exceeds the limit; it is not parsed."""

    status = 413
    type = "invalid_request_error"
    code = "request_too_large"


class IdempotencyMismatch(QuicksilverError):
    """The idempotency key was used with another body."""

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


class TooManyInFlight(RateLimited):
    """A key, project or organisation has its most requests in flight; the server queues such a request for a while."""


class InsufficientQuota(QuicksilverError):
    """Credits or budget are spent; retrying does not help."""

    status = 429
    type = "insufficient_quota"
    code = "insufficient_quota"


class Unavailable(QuicksilverError):
    """The request is valid but cannot be served now; retry after `retry_after_s`."""

    status = 503
    type = "server_error"
    code = "unavailable"

    def __init__(self, message: str, *, retry_after_s: float = 1.0, code: str | None = None) -> None:
        super().__init__(message, code=code)
        self.retry_after_s = retry_after_s


class EngineUnavailable(Unavailable):
    """The engine worker is starting or does not answer, or its queue is full."""

    code = "engine_unavailable"


class EngineOverloaded(Unavailable):
    """The request cannot start within the time that it may wait."""

    code = "engine_overloaded"


class EngineDied(Unavailable):
    """The engine worker died during this request; a new one is being started."""

    code = "engine_died"


class UpstreamFailed(Unavailable):
    """An upstream of hybrid routing did not answer, or answered with something unusable."""

    code = "upstream_failed"

    def __init__(
        self,
        message: str,
        *,
        asked_wait_s: float | None = None,
        may_retry: bool = False,
        is_refusal: bool = False,
    ) -> None:
        super().__init__(message)
        # Seconds for which the upstream asked not to be called.
        self.asked_wait_s = asked_wait_s
        # The same call may succeed at once.
        self.may_retry = may_retry
        # The upstream is well and refuses this request.
        self.is_refusal = is_refusal


class CompilerUnavailable(Unavailable):
    """No process can compile the grammar now; the grammar itself has not been judged."""

    code = "compiler_unavailable"


class LedgerUnavailable(Unavailable):
    """The ledger cannot be written, so no paid request is served."""

    code = "ledger_unavailable"


class RowFailed(QuicksilverError):
    """The forward of this request raised or returned non-finite numbers; other requests are not affected."""

    code = "row_failed"


class OutputInvalid(QuicksilverError):
    """The finished output does not satisfy the request's own schema; the same request would fail again."""

    status = 422
    type = "invalid_request_error"
    code = "output_invalid"


class CheckpointRefused(QuicksilverError):
    """The weight file is damaged, hostile or of an unsupported kind; the message says which."""

    status = 400
    type = "invalid_request_error"
    code = "checkpoint_refused"
