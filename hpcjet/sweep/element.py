"""One element of a sweep's array: `python -m hpcjet.sweep.element SWEEP NUMBER`, started by its batch script.

It makes the run directories of its points and is, or starts, their node agents. On this machine, without Slurm, one
such process runs all points of a sweep.
"""

import os
import re
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from hpcjet.cluster.batch import run_agents
from hpcjet.cluster.child import tail
from hpcjet.cluster.node import run_agent
from hpcjet.cluster.signals import Interrupted, signals_ignored, signals_raise
from hpcjet.cluster.state import annotate_state
from hpcjet.errors import EXIT_INTERRUPTED, EXIT_OK, EXIT_REQUEST, HpcjetError
from hpcjet.plan import Plan
from hpcjet.slurm.jobid import split_key
from hpcjet.slurm.requeue import Cause, cause_of_sigterm, element_id, requeue, time_left_s
from hpcjet.slurm.submission import Submission
from hpcjet.sweep.crew import Crew
from hpcjet.sweep.folder import About, Array, SweepDir
from hpcjet.sweep.points import Point
from hpcjet.sweep.prepared import element_of, prepare
from hpcjet.sweep.script import is_agent_itself
from hpcjet.sweep.share import take_share
from hpcjet.sweep.states import OUT_OF_MEMORY, Place, read_word

NEAR_S = 900.0
"""To the time limit, where only a point says that it was stopped; the warning may be cluster.signal_delay_s early."""


def main() -> None:
    if len(sys.argv) != 3 or not sys.argv[2].isdigit():
        print("usage, in a job of a sweep: python -m hpcjet.sweep.element SWEEP NUMBER", file=sys.stderr)
        sys.exit(EXIT_REQUEST)
    sweep = SweepDir(Path(sys.argv[1]))
    try:
        element = Element(sweep, sweep.read_about(), sweep.read_array(int(sys.argv[2])), os.environ)
        sys.exit(element.run())
    except HpcjetError as error:
        print(f"hpcjet: {error}", file=sys.stderr)
        sys.exit(error.exit_code)


class Element:
    """The points of one allocation."""

    def __init__(self, sweep: SweepDir, about: About, array: Array, env: Mapping[str, str]) -> None:
        self._sweep, self._about, self._array, self._env = sweep, about, array, env
        self._on_slurm = about.cluster != "local"
        self._restart = int(env.get("SLURM_RESTART_COUNT") or 0) if self._on_slurm else 0
        mine = array.element(element_of(env)) if self._on_slurm else array.points
        self._points = sweep.read_chosen(mine)
        self._order = mine

    def run(self) -> int:
        """Run its points that are not done; 0 if all are well, else the exit code of the first that is not."""
        if self._restart:
            self._order = [index for index in self._order if not self._is_done(index)]
        if self._on_slurm and self._array.pack == 1:
            return self._alone(self._order[0]) if self._order else EXIT_OK
        return self._together()

    def _is_done(self, index: int) -> bool:
        place = Place(self._array, element_of(self._env))
        return place.is_done(read_word(self._sweep.run(index).state))

    def _alone(self, index: int) -> int:
        # This process becomes the node agent: there is no second start of Python for each point.
        return self._agents(self._prepared(index))

    def _together(self) -> int:
        at_once = self._array.side_by_side if self._on_slurm else self._array.parallelism
        crew = Crew(
            lambda index, place: self._one_of(index, place, at_once), at_once=at_once, stops_with_one=self._on_slurm
        )
        try:
            with signals_raise(signal.SIGTERM, signal.SIGUSR2):
                crew.run(self._order)
        except Interrupted as interrupted:
            with signals_ignored(signal.SIGTERM, signal.SIGUSR2):
                self._queue_again(near_limit=interrupted.name == "SIGUSR2")
            return EXIT_INTERRUPTED
        if crew.was_stopped:
            left_s = time_left_s(self._env)
            self._queue_again(near_limit=left_s is not None and left_s < NEAR_S)
        return next((crew.codes[index] for index in self._order if crew.codes.get(index)), EXIT_OK)

    def _one_of(self, index: int, place: int, at_once: int) -> int:
        plan = self._prepared(index)
        if at_once > 1 and (self._on_slurm or plan.groups[0].cpus is None):
            take_share(slot=place, slots=at_once, on_slurm=self._on_slurm)
        return self._agents(plan)

    def _prepared(self, index: int) -> Plan:
        point: Point = self._points[index]
        return prepare(self._sweep, self._about, self._array, point, self._submission(), fresh=not self._restart)

    def _submission(self) -> Submission:
        if self._on_slurm:
            cluster, since = split_key(self._array.job)[1], self._array.submitted or None
            job = element_id(self._env)
            return Submission(
                "slurm", job, slurm_cluster=cluster, token=self._array.token, submitted=since, uid=os.getuid()
            )
        return Submission("local", str(os.getpid()), pid=os.getpid())

    def _agents(self, plan: Plan) -> int:
        """Its node agents: this process, or one on each node, started by srun."""
        if not self._on_slurm:
            return run_agent(plan.run.plan)
        itself = is_agent_itself(plan.num_nodes, plan.config["cluster"]["srun_args"])
        code = run_agent(plan.run.plan) if itself else run_agents(plan)
        if code and out_of_memory(plan.run.output(element_id(self._env), restart=self._restart)):
            state = read_word(plan.run.state)
            annotate_state(plan.run.state, f"{OUT_OF_MEMORY}: {state.reason if state else ''}")
        return code

    def _queue_again(self, *, near_limit: bool) -> None:
        """What is left of several points goes on in the next start of the same job, unless it was cancelled."""
        cluster = self._sweep.config(self._about, next(iter(self._points.values())))["cluster"]
        if not (self._on_slurm and cluster["requeue"] and self._restart < cluster["max_restarts"]):
            return
        if not near_limit and cause_of_sigterm(self._env["SLURM_JOB_ID"]) is not Cause.preempted:
            return
        if refused := requeue(element_id(self._env)):
            print(f"hpcjet: the job could not be queued again: {refused}", file=sys.stderr)
            return
        time.sleep(60)  # Slurm ends what is left of the job, this process too


def out_of_memory(output: Path) -> bool:
    """Whether srun says so at the end of a program's output: the job itself just fails then."""
    return bool(re.search(r"srun: error: .*Out Of Memory|Detected \d+ oom[-_]kill event", tail(output, 8)))


if __name__ == "__main__":
    main()
