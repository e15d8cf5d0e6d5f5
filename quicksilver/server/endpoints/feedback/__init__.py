"""`/feedback`."""
