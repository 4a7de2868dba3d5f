"""What a step costs, in calls that are counted as they run."""
