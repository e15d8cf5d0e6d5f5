"""HTTP: bodies of the APIs of OpenAI, Mercury, Anthropic, Ollama and llama.cpp -> core requests, and events ->
their replies.

Receives an EngineClient by injection, so it imports no engine and no torch. Start reading at `app.build_app`.
"""
