"""`quicksilver route`: an HTTP reverse proxy in front of servers that serve the same models."""
