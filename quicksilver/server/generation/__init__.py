"""From a checked body to an answer: plan, reservation, engine stream, usage."""
