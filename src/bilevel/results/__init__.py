"""The result of a run, its files and its plots."""
