"""API keys, organisations, limits, and a ledger that stays exact after kill -9.

`service.Accounts` is the interface for servers, `service.AdminService` the one for operators. Nothing here depends on
HTTP. Importing this package loads nothing.
"""
