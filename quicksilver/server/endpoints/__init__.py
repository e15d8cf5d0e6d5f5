"""One package per group of endpoints: what an API reads, how it plans a reply, and how it writes the reply.

To add an API, add one package here with

- `wire.py`: the request body, a `GenerationBody` with a bound on every number and list, and the replies as TypedDicts;
- `plan.py`: the body -> a `ReplyPlan`. Build one `AnswerRequest` per prompt with the `read_*` functions of
  `generation.plan`, encode with `services.prompts`, and return `plan_reply(prefix, body.model, answers)`. An API
  that is equivalent to a chat body translates its body and calls `chat.plan.plan_chat`;
- `format.py`: a `ReplyFormat` with `whole(answers)` for a reply in one piece and `chunks(index, piece)` for a stream.
  `begin`, `end`, `failure`, `encode` and `last_bytes` default to OpenAI's events;
- `route.py`: a router whose functions read the body, plan, and call `respond(request, services, body, plan, format)`.

Then list the router in `app.PAID` and the body in `app.BODIES`. Reservation, rate limits, replay of an
Idempotency-Key, disconnects, errors inside a stream and charging need no code in the package.
"""
