"""The eager torch backend: runs on any device and is the reference for the others."""
