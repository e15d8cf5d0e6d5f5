"""Example applications around frameworks. They run in the environment of `make frameworks`."""
