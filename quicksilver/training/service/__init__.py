"""The trainer of fine-tuning jobs: a process of its own that leases jobs, trains them and registers their adapters."""
