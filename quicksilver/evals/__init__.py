"""Evaluations: tasks that ask an EngineClient and score what it says. No torch, no engine: the client is given."""
