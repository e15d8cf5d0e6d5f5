"""Compile time: schemas, regexes, grammars and tools become grammar text, in processes that can be killed."""
