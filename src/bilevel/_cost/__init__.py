"""The cost of a step and of a run, in calls that are counted as they run."""
