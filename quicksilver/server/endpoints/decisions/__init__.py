"""`/v1/decisions` and `/v1/systemone`: typed questions about one input, answered with probabilities."""
