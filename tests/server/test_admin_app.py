"""The admin listener."""

from __future__ import annotations

import httpx

from quicksilver.server.admin_app import build_admin_app
from tests.server.conftest import Served


async def test_the_admin_listener_answers_to_its_own_names_only(served: Served) -> None:
    transport = httpx.ASGITransport(app=build_admin_app(served.services))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        assert (await client.get("/metrics", headers={"host": "evil.example"})).status_code == 421
        assert (await client.get("/metrics", headers={"origin": "http://evil.example"})).status_code == 403
        assert (await client.get("/v1/models")).json()["error"]["code"] == "not_found"
        served.services.open_requests.is_draining = True
        assert (await client.get("/metrics")).status_code == 200
