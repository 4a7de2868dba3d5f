"""Running a solver: the driver, the compiled loop, what is recorded and shown."""
