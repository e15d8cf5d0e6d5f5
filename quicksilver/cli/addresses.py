"""The address that is shown for a listener."""

from __future__ import annotations

from ipaddress import IPv6Address, ip_address


def shown_url(host: str, port: int) -> str:
    """The URL that a client on this machine uses. A listener on all addresses is shown with its loopback address, since
    the server refuses the name `0.0.0.0`."""
    try:
        address = ip_address(host.strip("[]"))
    except ValueError:
        return f"http://{host}:{port}"
    if isinstance(address, IPv6Address):
        return f"http://[{'::1' if address.is_unspecified else address}]:{port}"
    return f"http://{'127.0.0.1' if address.is_unspecified else address}:{port}"
