"""Agent programs of other projects against a scripted engine, without a network."""
