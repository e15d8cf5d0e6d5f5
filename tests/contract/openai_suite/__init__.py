"""The API tests of OpenAI's own Python library, run against this server."""
