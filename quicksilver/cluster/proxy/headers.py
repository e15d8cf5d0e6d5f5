"""Request heads for the servers and reply headers for the clients, without the headers of one connection."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from starlette.types import Scope

from quicksilver.cluster.proxy.config import Address
from quicksilver.cluster.proxy.connection import Header, ReplyHead
from quicksilver.errors import QuicksilverError

# They belong to one connection (RFC 9110, 7.6.1); `expect` is answered by this process.
HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
    )
)
VIA = b"1.1 quicksilver-route"
# Routers that a request may pass. A router that is its own server would pass it on without end.
MAX_HOPS = 4


class RoutedInCircle(QuicksilverError):
    """The request has passed too many routers."""

    status = 508
    code = "routed_in_circle"


def request_head(scope: Scope, address: Address, num_bytes: int | None, *, is_same_origin: bool) -> bytes:
    """The head of the request to a server. `num_bytes` is the length of the body; None if it is not known yet."""
    headers = _forwarded(scope["headers"], drops_origin=is_same_origin)
    headers += [(b"host", address.name.encode()), (b"via", VIA)]
    if scope.get("client"):
        headers.append((b"x-forwarded-for", str(scope["client"][0]).encode()))
    if num_bytes is None:
        headers.append((b"transfer-encoding", b"chunked"))
    elif num_bytes or scope["method"] not in ("GET", "HEAD", "DELETE"):
        headers.append((b"content-length", b"%d" % num_bytes))
    lines = b"".join(b"%b: %b\r\n" % header for header in headers)
    return b"%b %b HTTP/1.1\r\n%b\r\n" % (scope["method"].encode(), request_target(scope), lines)


def request_target(scope: Scope) -> bytes:
    """Path and query as they were sent. The path alone: a target with a scheme and host names no server here."""
    path: bytes = scope.get("raw_path") or scope["path"].encode()
    query: bytes = scope.get("query_string", b"")
    return path + b"?" + query if query else path


def _forwarded(headers: Iterable[Header], *, drops_origin: bool) -> list[Header]:
    sent = [(name.lower(), value) for name, value in headers]
    dropped = HOP_BY_HOP | _named_by_connection(sent) | {b"host", b"content-length"}
    dropped |= {b"origin"} if drops_origin else set()
    return [(name, value) for name, value in sent if name not in dropped]


def _named_by_connection(headers: Iterable[Header]) -> frozenset[bytes]:
    values = (value for name, value in headers if name == b"connection")
    return frozenset(token.strip().lower() for value in values for token in value.split(b","))


def reply_headers(head: ReplyHead, server_number: int) -> list[Header]:
    """The headers of a reply, and the number of the server that made it. `date` is added by the listener."""
    dropped = HOP_BY_HOP | _named_by_connection(head.headers) | {b"date"}
    kept = [header for header in head.headers if header[0] not in dropped]
    return [*kept, (b"x-quicksilver-server", b"%d" % server_number)]


def check_hops(headers: Sequence[Header]) -> None:
    """Raises RoutedInCircle."""
    passed = sum(value.count(VIA) for name, value in headers if name == b"via")
    if passed >= MAX_HOPS:
        raise RoutedInCircle("This request has passed too many routers; a router may be its own server.")
