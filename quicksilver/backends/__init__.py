"""Devices: each backend turns a batch of `Work` into `Outcome`s. `base.py` has the protocol, `choose.py` picks one."""
