"""Making adapters: data, losses over packed rows, on-policy generation, export. Touches model, diffusion and text only."""
