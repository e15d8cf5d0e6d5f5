"""Making adapters: data, losses over packed rows, on-policy text, export. Touches model, diffusion and text only."""
