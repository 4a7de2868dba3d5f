"""Whether `bl.solve` with nothing given ends where it should: problems, references, runs, and the page made of them."""
