"""hpcjet turns a Hydra config into a running Ray job on a Slurm supercomputer."""

__version__ = "0.1.0"
