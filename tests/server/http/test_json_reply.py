"""JSON replies."""

from __future__ import annotations

from quicksilver.server.http.json_reply import json_response


def test_a_reply_has_its_status_headers_and_media_type() -> None:
    reply = json_response({"a": 1}, {"x-test": "1"}, 202)
    assert (reply.status_code, reply.body, reply.headers["x-test"]) == (202, b'{"a":1}', "1")
    assert reply.media_type == "application/json"
