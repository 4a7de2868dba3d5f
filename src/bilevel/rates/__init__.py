"""Where rates come from: given, measured, or relative to the size of what they move."""
