"""The playground: static files and its start-up settings."""
