"""What a JSON Schema means, and the same said in words that a grammar compiler enforces exactly.

Reads with `node`, writes with `rewriter`. Touches llguidance only to ask about regular expressions.
"""
