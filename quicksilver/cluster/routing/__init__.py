"""The choice of a replica: prefix affinity and load. No I/O."""
