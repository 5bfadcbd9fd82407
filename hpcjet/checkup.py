"""`hpcjet doctor`: look at Slurm from here, run a short job that looks at the nodes, tell a person what works."""

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from hpcjet.errors import EXIT_CLUSTER, EXIT_INTERRUPTED, EXIT_OK, ConfigError, HpcjetError

if TYPE_CHECKING:
    from rich.console import Console

    from hpcjet.config.root import LaunchConfig
    from hpcjet.doctor.line import Facts, Line
    from hpcjet.doctor.report import Examined, Section
    from hpcjet.rundir import RunDir
    from hpcjet.slurm.query import JobState
    from hpcjet.slurm.submission import Submission

HELP = "find out what works on a cluster: the first thing to run on a new one"
DESCRIPTION = """\
Find out what works on a cluster. It looks at Slurm from this login node, then
runs a job of a minute on two nodes and looks at each node and at what lies
between them: sandboxes, shared files, network and speed, ports, GPUs, Ray,
limits, clocks. Each line of the report says ok, warn or FAIL, and what to do.
"""
EPILOG = """\
examples:
  hpcjet doctor                                     this machine
  hpcjet doctor cluster=slurm cluster.account=abc123
  hpcjet doctor cluster=slurm cluster.partition=gpu cluster.gpus_per_node=4

Every key of python -m hpcjet.launch --help cluster is taken; by default two
nodes and five minutes are asked for. The report is kept in the run directory,
doctor.json. Exit codes: 0 nothing failed, 2 the request was wrong, 3 something
failed, 130 interrupted.
"""
DEFAULTS = {
    "cluster.nodes": "2",
    "cluster.time_min": "5",
    "cluster.min_nodes": "1",
    "cluster.requeue": "false",
    "cluster.max_restarts": "0",
}
"""Unless the person sets them. min_nodes: a node that does not come is to be reported, not waited for."""
LATE_S = 5.0
"""For the last files of the nodes to be seen here."""
POLL_S = 1.0
REPORT = "doctor.json"


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    command = commands.add_parser(
        "doctor",
        help=HELP,
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    command.add_argument("overrides", nargs="*", metavar="key=value", help="where to look, as for a launch")
    command.add_argument("--json", action="store_true", help="lines and facts for scripts")
    command.add_argument(
        "--wait", type=float, default=600.0, metavar="S", help="seconds that the job may wait in the queue (600)"
    )
    command.set_defaults(func=doctor)


def doctor(arguments: argparse.Namespace) -> int:
    """The command; returns its exit code."""
    from rich.console import Console

    from hpcjet.doctor.line import Level
    from hpcjet.doctor.report import as_json, worst

    config = with_defaults(arguments.overrides)
    report = Checkup(config, arguments.overrides, wait_s=arguments.wait, console=Console(stderr=True))
    if report.run_all() == EXIT_INTERRUPTED:
        return EXIT_INTERRUPTED
    text = as_json(report.sections, run=str(report.run) if report.run else None, facts=report.facts)
    if report.run:
        report.keep(text)
    print(text if arguments.json else report.text(colour=sys.stdout.isatty() and "NO_COLOR" not in os.environ))
    return EXIT_CLUSTER if worst(report.sections) is Level.fail else EXIT_OK


def with_defaults(overrides: Sequence[str]) -> "LaunchConfig":
    """The config of the examination. Raises ConfigError."""
    from hpcjet.config.cluster import SlurmConfig
    from hpcjet.config.compose import compose

    config = compose(["+exp=doctor", *overrides])
    if isinstance(config.cluster, SlurmConfig):
        given = {override.lstrip("+~").partition("=")[0] for override in overrides}
        more = [f"{key}={value}" for key, value in DEFAULTS.items() if key not in given]
        config = compose(["+exp=doctor", *overrides, *more])
    if config.dry_run or not config.submit or not config.follow:
        raise ConfigError(
            "hpcjet doctor runs and reports: leave out dry_run, submit and follow; to see its job without running it: "
            "python -m hpcjet.launch +exp=doctor cluster=slurm cluster.nodes=2 dry_run=true"
        )
    return config


class Checkup:
    """One examination: `run_all` makes the sections of the report."""

    def __init__(self, config: "LaunchConfig", overrides: Sequence[str], *, wait_s: float, console: "Console") -> None:
        self._config, self._overrides, self._wait_s, self._console = config, list(overrides), wait_s, console
        self.sections: list[Section] = []
        self.facts: Facts = {}
        self.run: RunDir | None = None
        self._hosts: tuple[str, ...] = ()

    def run_all(self) -> int:
        """Returns EXIT_INTERRUPTED if it was, else EXIT_OK. Raises HpcjetError for a request that is wrong."""
        from hpcjet.doctor.line import Level
        from hpcjet.preflight import become_lab_user, find_lab

        find_lab(self._config)
        become_lab_user(self._config)
        self._look_from_here()
        if any(line.level is Level.fail for section in self.sections for line in section.lines):
            return EXIT_OK
        return self._look_at_nodes()

    def text(self, *, colour: bool) -> str:
        """The report for a person."""
        from hpcjet.doctor.render import render

        kept = f"\nThis report is kept: {self.run.path / REPORT}" if self.run else ""
        return render(self.sections, hosts=self._hosts, overrides=self._overrides, colour=colour).rstrip() + kept

    def keep(self, report: str) -> None:
        """Leave the report in the run directory."""
        from hpcjet.atomic import atomic_write

        assert self.run is not None
        atomic_write(self.run.path / REPORT, report)

    def _look_from_here(self) -> None:
        """What can be seen without a job."""
        from hpcjet.config.cluster import SlurmConfig
        from hpcjet.doctor import run_root
        from hpcjet.doctor.report import Section

        root = run_root.look(self._config.run.root.expanduser().absolute())
        self.facts["runs"] = root
        lines = run_root.assess(root)
        if not isinstance(self._config.cluster, SlurmConfig):
            self.sections.append(Section("this machine", tuple(lines)))
            return
        from hpcjet.doctor import slurm_commands

        commands = self.facts["commands"] = slurm_commands.look()
        self.sections.append(Section("this login node", (*slurm_commands.assess(commands), *lines)))
        if commands["there"]["scontrol"]:
            self.sections.append(Section("Slurm", tuple(self._slurm_lines(self._config.cluster))))

    def _slurm_lines(self, cluster: object) -> "list[Line]":
        from hpcjet.config.cluster import SlurmConfig
        from hpcjet.doctor import accounting, controller, mpi, partitions

        assert isinstance(cluster, SlurmConfig)
        found = self.facts["slurm"] = controller.look()
        lines = controller.assess(found)
        if found["complaint"]:
            return lines
        settings = found["settings"]
        self.facts |= {
            "accounting": accounting.look(settings),
            "partitions": partitions.look(),
            "mpi": mpi.look(settings),
        }
        given = any(override.startswith("cluster.time_min=") for override in self._overrides)
        lines += partitions.assess(self.facts["partitions"], cluster, time_given=given)
        lines += accounting.assess(self.facts["accounting"], account=cluster.account)
        return lines + mpi.assess(self.facts["mpi"])

    def _look_at_nodes(self) -> int:
        from hpcjet.cluster.state import read_state
        from hpcjet.doctor import job
        from hpcjet.doctor.report import Section, between_section, node_section
        from hpcjet.start import new_run

        try:
            self.run, submission = new_run(self._config)
        except HpcjetError as error:
            self.sections.append(Section("nodes", (job.refused(str(error)),)))
            return EXIT_OK
        assert submission is not None
        code = self._follow(self.run, submission)
        if code is None or code == EXIT_INTERRUPTED:
            return EXIT_OK if code is None else code
        examined = read_answers(self.run)
        if not examined.nodes:
            said = examined.said or last_words(self.run)
            line = job.ended(read_state(self.run.state), code, said, run=str(self.run))
            self.sections.append(Section("nodes", (line,)))
            return EXIT_OK
        self._hosts = examined.hosts
        self.facts["nodes"] = list(examined.nodes.values())
        self.sections.append(node_section(examined))
        if len(examined.hosts) > 1:
            self.sections.append(between_section(examined))
        return EXIT_OK

    def _follow(self, run: "RunDir", submission: "Submission") -> int | None:
        """The exit code of the run; None if it waited too long in the queue and was cancelled."""
        from hpcjet.doctor import job
        from hpcjet.doctor.report import Section
        from hpcjet.follow import follow
        from hpcjet.slurm.submission import cancel

        if submission.cluster == "slurm":
            self._say(f"run {run}\nSlurm job {submission.job_id} looks at the nodes; it may wait in the queue")
            try:
                waiting = self._await_start(submission)
            except KeyboardInterrupt:
                cancel(submission)
                raise
            if waiting:
                cancel(submission)
                self.sections.append(Section("nodes", (job.still_queued(waiting.reason, self._wait_s),)))
                return None
        return follow(run, submission, self._console)

    def _await_start(self, submission: "Submission") -> "JobState | None":
        """Until the job leaves the queue: None; or its state if it is still there after the time."""
        from hpcjet.slurm.query import Stage
        from hpcjet.slurm.submission import submission_state

        deadline, reason = time.monotonic() + self._wait_s, ""
        while (state := submission_state(submission)).stage is Stage.pending:
            if state.reason not in ("", "None", reason):
                reason = state.reason
                self._say(f"queued ({reason})")
            if time.monotonic() > deadline:
                return state
            time.sleep(POLL_S)
        return None

    def _say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def read_answers(run: "RunDir") -> "Examined":
    """What the nodes left in the run directory; what is late is waited for a little."""
    from hpcjet.doctor.order import FOLDER, answer_name
    from hpcjet.doctor.report import Examined
    from hpcjet.doctor.workload import STEP

    folder, deadline = run.path / FOLDER, time.monotonic() + LATE_S
    step = _read(folder, STEP)
    while step is None and time.monotonic() < deadline and folder.is_dir():
        time.sleep(0.2)
        step = _read(folder, STEP)
    if step is None:
        return Examined((), {})
    found: dict[int, Facts] = {}
    ranks = range(len(step["hosts"]))
    while len(found) < len(ranks):
        for rank in ranks:
            if rank not in found and (answer := _read(folder, answer_name(rank))):
                found[rank] = answer
        # A step that went well has left all; only the file system may be late.
        if step["said"] or time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return Examined(tuple(step["hosts"]), found, lost=tuple(step["lost"]), said=step["said"])


def last_words(run: "RunDir") -> str:
    """The first complaint in what the job printed: later ones are about its end."""
    for log in sorted(run.submit_folder.glob("*_log.*")):
        for line in log.read_text(errors="replace").splitlines():
            if "error" in line.lower():
                return line.strip()
    return ""


def _read(folder: Path, name: str) -> "Facts | None":
    """A file of a folder, found by listing; None if it is not there."""
    try:
        if name not in {entry.name for entry in os.scandir(folder)}:
            return None
        found = json.loads((folder / name).read_text())
    except OSError:
        return None
    assert isinstance(found, dict)
    return found
