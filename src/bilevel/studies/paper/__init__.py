"""The experiments of the MORBiT paper: its figures, its claims, and what we find.

`experiments` declares problems, solvers, rates and lengths, and `bilevel.studies.running` makes and keeps their runs.
`figures` draws them, and `claims` tests what the paper says about them. `commands` has `bilevel reproduce`, which does
all this, and `bilevel demo`, a short comparison on data that come with the package.
"""
