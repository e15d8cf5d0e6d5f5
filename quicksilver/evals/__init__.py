"""Evaluations: tasks that prompt an `EngineClient` and score its answers. This package imports neither torch nor the
engine; the client is passed in."""
