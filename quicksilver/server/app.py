"""build_app: the public API as one ASGI application around injected Services.

A request passes: guard (headers, host, origin, capacity) -> route -> key -> body -> engine. With accounts every route
requires a key, except the probes and the public ones.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI
from starlette.middleware.cors import CORSMiddleware

from quicksilver import __version__
from quicksilver.server.accounts import account_route as account
from quicksilver.server.accounts import usage_route as usage
from quicksilver.server.accounts import wire as account_bodies
from quicksilver.server.endpoints.batches import route as batches
from quicksilver.server.endpoints.batches.runner import BatchRunner
from quicksilver.server.endpoints.batches.wire import BatchBody
from quicksilver.server.endpoints.chat import route as chat
from quicksilver.server.endpoints.chat import stored_route as stored_chats
from quicksilver.server.endpoints.chat.stored import ChatUpdateBody
from quicksilver.server.endpoints.chat.wire import ChatBody
from quicksilver.server.endpoints.completions import route as completions
from quicksilver.server.endpoints.completions.wire import CompletionBody, FimBody
from quicksilver.server.endpoints.conversations import route as conversations
from quicksilver.server.endpoints.conversations.wire import ConversationBody, ConversationUpdateBody, NewItemsBody
from quicksilver.server.endpoints.decisions import route as decisions
from quicksilver.server.endpoints.decisions.wire import DecisionBody, SystemOneBody
from quicksilver.server.endpoints.edits import route as edits
from quicksilver.server.endpoints.edits.wire import ApplyBody, EditBody
from quicksilver.server.endpoints.feedback import route as feedback
from quicksilver.server.endpoints.feedback.wire import FeedbackBody
from quicksilver.server.endpoints.files import route as files
from quicksilver.server.endpoints.fine_tuning import route as fine_tuning
from quicksilver.server.endpoints.fine_tuning.wire import JobBody
from quicksilver.server.endpoints.health import route as health
from quicksilver.server.endpoints.infill import route as infill
from quicksilver.server.endpoints.infill.wire import InfillBody
from quicksilver.server.endpoints.messages import route as messages
from quicksilver.server.endpoints.messages.wire import CountTokensBody, MessagesBody
from quicksilver.server.endpoints.models import route as models
from quicksilver.server.endpoints.ollama import route as ollama
from quicksilver.server.endpoints.ollama.wire import OllamaChatBody, OllamaGenerateBody, ShowBody
from quicksilver.server.endpoints.playground import route as playground
from quicksilver.server.endpoints.responses import route as responses
from quicksilver.server.endpoints.responses import stored_route as stored_responses
from quicksilver.server.endpoints.responses.wire import CompactBody, ResponsesBody
from quicksilver.server.endpoints.tokens import route as tokens
from quicksilver.server.endpoints.tokens.wire import DetokenizeBody, TokenizeBody
from quicksilver.server.http.guard import (
    Guard,
    add_refusals,
    require_account,
    require_inference,
    require_key,
    require_public_slot,
)
from quicksilver.server.http.openapi import describe
from quicksilver.server.services import Services

BODIES = (
    ChatBody,
    ChatUpdateBody,
    FimBody,
    CompletionBody,
    EditBody,
    ApplyBody,
    ResponsesBody,
    CompactBody,
    ConversationBody,
    ConversationUpdateBody,
    NewItemsBody,
    BatchBody,
    JobBody,
    MessagesBody,
    CountTokensBody,
    TokenizeBody,
    DetokenizeBody,
    DecisionBody,
    SystemOneBody,
    InfillBody,
    OllamaChatBody,
    OllamaGenerateBody,
    ShowBody,
    FeedbackBody,
    *account_bodies.BODIES,
)
# Answered without a key and at any time.
PROBES = (health.router,)
# Answered without a key, a few at a time: reports from editors, which carry none, and the playground's files.
PUBLIC = (feedback.router, playground.router)
KEYED = (models.router, tokens.router, messages.counting_router, ollama.listing_router)
# Objects of the key's project, which hold prompts and answers: reading them takes the scope that generating them takes.
STORED = (
    stored_chats.router,
    stored_responses.router,
    conversations.router,
    files.router,
    batches.router,
    fine_tuning.router,
)
# What a key may see and do about itself; there is nothing here without accounts.
OWN = (account.router, usage.router)
PAID = (
    chat.router,
    completions.router,
    edits.router,
    responses.router,
    messages.router,
    decisions.router,
    infill.router,
    ollama.router,
)


def build_app(services: Services) -> FastAPI:
    app = FastAPI(title="quicksilver", version=__version__, docs_url=None, redoc_url=None, redirect_slashes=False)
    app.state.services = services
    app.state.batches = BatchRunner(app)
    for router in PROBES:
        app.include_router(router)
    for router in PUBLIC:
        app.include_router(router, dependencies=[Depends(require_public_slot)])
    for router in KEYED:
        app.include_router(router, dependencies=[Depends(require_key)])
    for router in OWN:
        app.include_router(router, dependencies=[Depends(require_account)])
    for router in (*PAID, *STORED):
        app.include_router(router, dependencies=[Depends(require_inference)])
    add_refusals(app)
    app.openapi = lambda: describe(app, BODIES)  # type: ignore[method-assign]
    _wrap(app, services)
    return app


def _wrap(app: FastAPI, services: Services) -> None:
    """Middleware added last runs first."""
    origins = services.config.origins
    if origins:
        # Browsers hide the request id, the limits and the advice on retries from a page unless they are exposed.
        every = ["*"]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=every, allow_headers=every, expose_headers=every
        )
    app.add_middleware(Guard)
