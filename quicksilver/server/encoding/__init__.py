"""Prompts -> token ids, bounded in size, and outside this process where it takes long."""
