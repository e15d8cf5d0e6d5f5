"""`/v1/conversations`: items that responses continue and extend."""
