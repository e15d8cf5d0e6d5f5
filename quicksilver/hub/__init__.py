"""Names -> files on this machine: the catalogue of known models, and `pull`. Weights are data, never imported."""
