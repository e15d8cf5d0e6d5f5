"""Endpoints for keys, organisations, projects, limits, prices and usage."""
