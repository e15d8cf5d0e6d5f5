"""HTTP: translates OpenAI's and Mercury's wire into core requests, and core events back into their replies.

Receives an EngineClient by injection, so it imports no engine and no torch. Start reading at `app.build_app`.
"""
