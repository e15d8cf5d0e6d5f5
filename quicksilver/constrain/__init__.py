"""Structured output: schemas, regexes, grammars and tools become token constraints.

Touches `core`, `errors`, llguidance and jsonschema-rs; numpy bitmasks, no torch. The grammar that comes out of here
admits nothing that the schema refuses; what cannot be promised is refused with the keyword's name.
"""
