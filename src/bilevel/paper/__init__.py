"""The experiments of the MORBiT paper: its figures, its claims, and what we find.

Every file of an application (`fashion`, `sinusoids`, `letter`) declares problem, solvers, rates and lengths; `running`
makes the runs, `records` keeps them, `figures` draws them and `claims` tests what the paper says of them.
"""
