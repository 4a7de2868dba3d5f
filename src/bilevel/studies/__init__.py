"""An experiment: problems x solvers x seeds, run, kept and resumed."""
