"""The report of a training, from what stands in its run directory: for scripts, and for a browser.

The page needs nothing else. Its one script moves the formation; a content security policy names it by its hash, so that
nothing else can run, and without it there are still pictures.
"""

import base64
import hashlib
import json
from collections import deque
from pathlib import Path
from typing import Any

from hpcjet.atomic import atomic_write
from hpcjet.config.root import kind_of
from hpcjet.config.swarm.exp import SwarmConfig
from hpcjet.config.swarm.formation import FormationConfig
from hpcjet.errors import ConfigError, StoreError
from hpcjet.ledger import nodes_view, read_ledger
from hpcjet.plan import Plan, read_plan
from hpcjet.rundir import RunDir
from hpcjet.shown.page import template
from hpcjet.shown.visible import visible
from hpcjet.swarm.row import Row
from hpcjet.swarm.watch import views
from hpcjet.swarm.watch.csv_log import read_rows
from hpcjet.swarm.watch.files import SwarmFiles
from hpcjet.swarm.watch.film import film, stills
from hpcjet.swarm.watch.settings import settings
from hpcjet.swarm.watch.summary import Summary, summarise
from hpcjet.swarm.watch.told import read_losses, read_seats
from hpcjet.swarm.watch.trajectory import load_trajectory

HERE = Path(__file__).parent
MOST_ROWS = 200_000
"""Of metrics.csv; of a longer one the last ones are shown."""
MOST_LINES = 200
"""Of a table."""


def summarise_run(run: RunDir) -> Summary:
    """The figures so far. Raises ConfigError if this is no training."""
    training_of(run)
    files = SwarmFiles.of(run)
    return summarise(
        _rows(files), read_losses(files.losses), read_seats(files.seats), load_trajectory(files.trajectory)
    )


def write_report(run: RunDir) -> Summary:
    """Write report.html and summary.json. Raises ConfigError if this is no training, StoreError if there is no room."""
    plan, exp = training_of(run)
    files = SwarmFiles.of(run)
    rows, losses, seats = _rows(files), read_losses(files.losses), read_seats(files.seats)
    trajectory = load_trajectory(files.trajectory) if isinstance(_environment(exp), FormationConfig) else None
    summary = summarise(rows, losses, seats, trajectory)
    script, script_hash = player_script()
    page = template(HERE).render(
        title=visible(f"{run.path.parent.name}/{run.path.name}"),
        subtitle=visible(subtitle(exp, seed=plan.typed_config().seed)),
        run=visible(str(run.path)),
        figures=views.figures(summary),
        film=film(trajectory) if trajectory else None,
        stills=stills(trajectory) if trajectory else [],
        trajectory=trajectory,
        curves=views.curves(rows),
        lags=views.lag_bars(summary.lags),
        losses=views.loss_views(losses[:MOST_LINES]),
        hidden_losses=max(0, len(losses) - MOST_LINES),
        seats=views.seat_views(seats[:MOST_LINES]),
        hidden_seats=max(0, len(seats) - MOST_LINES),
        nodes=nodes_view(read_ledger(run)),
        settings=settings(exp),
        script=script,
        script_hash=script_hash,
    )
    try:
        atomic_write(run.report, page.encode("utf-8", "replace"))
        atomic_write(run.summary, json.dumps(summary.to_json(), indent=2))
    except OSError as error:
        raise StoreError(
            f"{run.report} could not be written: {error.strerror}; free space there, then: hpcjet report {run}"
        ) from error
    return summary


def player_script() -> tuple[str, str]:
    """The script of pages that move, and its hash as a content security policy wants it."""
    script = (HERE / "player.js").read_text(encoding="utf-8")
    return script, base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


def subtitle(exp: SwarmConfig, *, seed: int) -> str:
    """What was trained, in one line."""
    environment = _environment(exp)
    if isinstance(environment, FormationConfig):
        what = f"{environment.agents:,} agents, {environment.shape.name}"
    else:
        what = str(getattr(environment, "env", kind_of("exp", exp)))
    worlds = f"{exp.worlds:,} world{'' if exp.worlds == 1 else 's'}"
    return f"{what}; {worlds}; {exp.learner.algorithm.name}, {exp.staleness.mode.name}, {exp.backend}; seed {seed}"


def _environment(exp: SwarmConfig) -> Any:
    return getattr(exp, "environment", None)


def training_of(run: RunDir) -> tuple[Plan, SwarmConfig]:
    """Its plan, and what was trained. Raises ConfigError if this is no training."""
    try:
        plan = read_plan(run.plan.read_text())
    except OSError:
        raise ConfigError(f"{run} is no run: {run.plan.name} is missing; see hpcjet runs") from None
    exp = plan.typed_config().exp
    if not isinstance(exp, SwarmConfig):
        raise ConfigError(f"{run} is no training of a swarm but of exp={plan.exp}; see hpcjet runs")
    return plan, exp


def _rows(files: SwarmFiles) -> list[Row]:
    return list(deque(read_rows(files.metrics), MOST_ROWS))
