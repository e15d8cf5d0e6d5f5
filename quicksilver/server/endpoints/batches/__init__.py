"""`/v1/batches`: many requests of one file, generated when nothing else waits, at half price."""
