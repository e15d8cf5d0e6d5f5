"""A cluster on Ray Serve: engine replicas on many machines, and the engine client that API processes use."""
