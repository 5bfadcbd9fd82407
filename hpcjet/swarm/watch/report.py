"""The report of a training, from what stands in its run directory."""

from hpcjet.rundir import RunDir


def write_report(run: RunDir) -> None:
    """Write report.html and summary.json. Raises StoreError if they cannot be written."""
