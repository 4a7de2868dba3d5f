"""Several processes, on one host or many, that make one run together.

`bl.distributed.start()` at the top of a script that `srun`, `mpirun` or a cluster starts once for each process; after
it `bl.solve` uses the devices of all of them.
"""

from bilevel.distributed.starting import start

__all__ = ["start"]
