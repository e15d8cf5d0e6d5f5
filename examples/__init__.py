"""Example applications. Each module has one purpose and runs with `python -m examples.NAME --url URL`."""
