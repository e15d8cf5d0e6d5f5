"""`/v1/files`: uploaded files, and the results of batches."""
