"""The choice of a replica: prefix affinity, load, and replicas that fail. No I/O."""
