"""Transport: connection limits, authentication, bodies, errors, server-sent events, metrics and logs."""
