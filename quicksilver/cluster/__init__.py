"""More than one machine: which replica answers a request, and an HTTP router in front of several servers."""
