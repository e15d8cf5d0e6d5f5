"""Rewrites a JSON Schema into keywords that llguidance enforces exactly.

`node` reads the schema, `rewriter` writes the result. llguidance is used only to decide questions about regular
expressions.
"""
