"""What a step of every bilevel solver needs from a problem: lower steps, and the upper direction."""
