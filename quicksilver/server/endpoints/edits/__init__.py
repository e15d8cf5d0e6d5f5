"""`/v1/edit/completions` and `/v1/apply/completions`."""
