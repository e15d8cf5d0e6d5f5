"""The engine: admission, scheduling, KV pages and commit. It works on token ids and imports no text or HTTP code.

This file imports nothing, so that a process without torch can import `quicksilver.engine.config`.
"""
