"""What solvers share: their state, their options and the moves that a step is made of."""
