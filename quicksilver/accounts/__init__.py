"""Who may call, and what it cost: organisations, keys, limits, and a ledger that survives kill -9.

Touches the database and `errors`, `core` below; knows nothing of HTTP. `service.Accounts` is the front door for a
server, `directory.Directory` for operators. Importing this package loads nothing.
"""
