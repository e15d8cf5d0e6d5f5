"""Structured output: compiles schemas, regular expressions, grammars and tools to token constraints.

A grammar admits nothing that its schema refuses. What cannot be guaranteed is refused, or left to validation of the
finished output. Uses llguidance, jsonschema-rs and numpy, but not torch.
"""
