"""`/v1/files`: upload, list, describe, read and delete."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal, NotRequired

from fastapi import APIRouter, Request
from pydantic import AfterValidator, Field, TypeAdapter, ValidationError
from starlette.responses import Response
from typing_extensions import TypedDict

from quicksilver.accounts.records import StoredObject
from quicksilver.errors import InvalidRequest
from quicksilver.server.endpoints.files.store import (
    FILE,
    describe,
    get_file,
    has_expired,
    read_content,
    save_file,
)
from quicksilver.server.endpoints.files.upload import read_upload
from quicksilver.server.http.guard import caller_of
from quicksilver.server.http.json_reply import json_response
from quicksilver.server.http.list_query import DEFAULT_LISTED, DeletedReply, ListQuery, ObjectList
from quicksilver.server.http.openapi import answers, answers_read, refusals
from quicksilver.server.http.query import asks, read_query
from quicksilver.server.services import services_of
from quicksilver.server.storage import list_reply, read_json

router = APIRouter(prefix="/v1/files", tags=["files"])

Purpose = Literal["assistants", "batch", "fine-tune", "vision", "user_data", "evals"]
PURPOSE: TypeAdapter[Purpose] = TypeAdapter(Purpose)
FORM = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "properties": {
                        "file": {"type": "string", "format": "binary"},
                        "purpose": {"enum": list(Purpose.__args__)},  # type: ignore[attr-defined]
                    },
                }
            }
        },
    }
}
# Longest time after which a file may be set to expire.
MAX_AGE_S = 30 * 86_400
MAX_AGE_DIGITS = 9
MAX_FILES = 10_000


class FileReply(TypedDict):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"]
    status_details: NotRequired[None]


class FileQuery(ListQuery):
    # OpenAI's clients may ask for this many files.
    limit: Annotated[int, Field(ge=0, le=MAX_FILES), AfterValidator(lambda limit: limit or DEFAULT_LISTED)] = 20
    purpose: Annotated[str, Field(max_length=64)] = ""


@router.post("", responses=answers(FileReply), openapi_extra=FORM)
async def upload_file(request: Request) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    services.storage.require_on("file")
    async with read_upload(request, services.config) as upload:
        purpose, expires_at = _purpose(upload.fields), _expiry(upload.fields)
        reply = describe(upload.filename or "upload", purpose, upload.num_bytes, expires_at)
        await save_file(services.storage, owner, reply, upload.content, services.config.stored_bytes)
    return json_response(reply)


def _purpose(fields: dict[str, str]) -> Purpose:
    try:
        return PURPOSE.validate_python(fields.get("purpose"))
    except ValidationError:
        known = ", ".join(Purpose.__args__)  # type: ignore[attr-defined]
        raise InvalidRequest(f"purpose: one of {known}", param="purpose") from None


def _expiry(fields: dict[str, str]) -> int | None:
    seconds = fields.get("expires_after[seconds]")
    if seconds is None:
        return None
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) <= MAX_AGE_DIGITS
    if not (is_number and 0 < int(seconds) <= MAX_AGE_S):
        raise InvalidRequest("expires_after: seconds up to 30 days", param="expires_after")
    return int(time.time()) + int(seconds)


@router.get("", responses=answers_read(ObjectList), openapi_extra=asks(FileQuery))
async def list_files(request: Request) -> Response:
    services, owner = services_of(request), caller_of(request).tenant
    query = read_query(request, FileQuery)

    def read(stored: StoredObject) -> dict[str, Any] | None:
        file = read_json(stored)
        is_wanted = not query.purpose or file["purpose"] == query.purpose
        return file if is_wanted and not has_expired(file) else None

    return json_response(list_reply(*await services.storage.matching(owner, FILE, query, read)))


@router.get("/{file_id}", responses=answers_read(FileReply))
async def describe_file(request: Request, file_id: str) -> Response:
    return json_response(await get_file(services_of(request).storage, caller_of(request).tenant, file_id))


@router.delete("/{file_id}", responses=answers_read(DeletedReply))
async def delete_file(request: Request, file_id: str) -> Response:
    await services_of(request).storage.delete(caller_of(request).tenant, FILE, file_id)
    return json_response({"id": file_id, "object": "file", "deleted": True})


@router.get("/{file_id}/content", responses={200: {"content": {"application/octet-stream": {}}}, **refusals()})
async def file_content(request: Request, file_id: str) -> Response:
    content = await read_content(services_of(request).storage, caller_of(request).tenant, file_id)
    return Response(content, media_type="application/octet-stream", headers={"content-disposition": "attachment"})
