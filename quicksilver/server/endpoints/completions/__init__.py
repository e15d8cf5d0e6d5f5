"""`/v1/completions` and `/v1/fim/completions`."""
