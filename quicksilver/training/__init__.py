"""Training of adapters: data preparation, losses over packed rows, on-policy generation, export."""
