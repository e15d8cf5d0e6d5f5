"""Wire bodies and replies, one file an endpoint: fields, bounds and defaults only, no behaviour."""
