"""Hybrid routing: `model: "auto"` chooses between the models of this server and upstreams that the operator named."""
