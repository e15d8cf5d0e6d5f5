"""Model names -> files on this machine: the catalogue of models, `pull` and `resolve`."""
