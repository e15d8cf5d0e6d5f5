"""One file an endpoint: what comes in, what goes out, and nothing of how an answer is made."""
