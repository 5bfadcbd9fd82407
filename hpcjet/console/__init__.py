"""What the `hpcjet` command shows of runs."""
