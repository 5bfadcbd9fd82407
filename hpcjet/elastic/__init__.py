"""Worker allocations come and go with the work: a pure policy, and a thin keeper that carries out what it decides."""
