"""`/v1/models` and the model names that this server answers to."""
