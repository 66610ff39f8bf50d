"""Twinpool's engine beside others, each in an environment of its own, on the same cores in the same run."""
