"""Number formats: how weights are rounded and packed."""
