"""What a step of every bilevel solver asks of a problem: lower steps, and the upper direction."""
