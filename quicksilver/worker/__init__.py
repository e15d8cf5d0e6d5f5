"""The engine process: its program, the protocol on its socket, the client, and the supervisor that restarts it."""
