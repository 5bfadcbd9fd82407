"""What a person sees of a training. The driver writes, all else reads:

- `MetricsLog(RUN/swarm).write(row)` once for each update: metrics.csv and TensorBoard's files; `swarm.row` says what is
  in it.
- `SwarmProgress(run.progress, updates=, agent_steps=).write(row, note=)` as often as it likes: progress.json, which
  `swarm.line` turns into the one line that is shown.
- `write_seats` and `note_loss`: seats.json, losses.jsonl (`files` names all files).
- `record_trajectory(config, policies)` and `Trajectory.save`: a greedy episode of a formation.
- `write_report(run)`: report.html and summary.json, at the end.

None of them raises where the disk is full, but `save` and `write_report`.
"""

from hpcjet.swarm.row import Row, lags_text
from hpcjet.swarm.watch.files import SwarmFiles
from hpcjet.swarm.watch.metrics_log import MetricsLog
from hpcjet.swarm.watch.progress import SwarmProgress
from hpcjet.swarm.watch.report import write_report
from hpcjet.swarm.watch.told import Loss, SeatFacts, note_loss, write_seats
from hpcjet.swarm.watch.trajectory import Trajectory, record_trajectory

__all__ = [
    "Loss",
    "MetricsLog",
    "Row",
    "SeatFacts",
    "SwarmFiles",
    "SwarmProgress",
    "Trajectory",
    "lags_text",
    "note_loss",
    "record_trajectory",
    "write_report",
    "write_seats",
]
