"""Number formats of weights: which device supports which, and the rounding arithmetic of each."""
