"""Many requests, one loop of forwards. Touches model, diffusion and core; never text, never HTTP.

Nothing is imported here, so that `quicksilver.worker.client` can be used by a process that never loads torch.
"""
