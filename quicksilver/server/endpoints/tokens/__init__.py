"""`/v1/tokenize` and `/v1/detokenize`."""
