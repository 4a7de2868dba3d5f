"""What a run returns, kept and drawn."""
