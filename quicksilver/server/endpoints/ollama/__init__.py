"""Ollama's API under `/api`: chat, generate, and what clients ask about the models."""
