"""hpcjet runs, logs, report's use of the nodes, completion: on run directories made by hand."""

import io
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from hpcjet import cli
from hpcjet.atomic import atomic_write
from hpcjet.cluster.events import Entry, Event
from hpcjet.cluster.state import Phase, RunState, write_state
from hpcjet.console.completion import run_names
from hpcjet.console.efficiency import efficiency, lines, size
from hpcjet.console.listing import print_rows, rows
from hpcjet.console.logs import follow_files, log_files
from hpcjet.errors import ConfigError
from hpcjet.rundir import RunDir, find_run
from hpcjet.slurm.query import JobState, Stage
from hpcjet.slurm.times import elapsed_s


def made(root: Path, number: int, state: RunState | None = None, *, exp: str = "noop", job: str = "") -> RunDir:
    run = RunDir(root / exp / f"20260102-{number // 3600:02}{number // 60 % 60:02}{number % 60:02}-a{number:05}")
    run.path.mkdir(parents=True)
    if state:
        write_state(run.state, state)
    if job:
        atomic_write(run.submission, json.dumps({"cluster": "slurm", "job_id": job}))
    return run


def command(*words: str, code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    assert ended.value.code == code


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run of each kind; the queue knows jobs 3 (pending) and 4 (running), and nobody knows 5."""
    root = tmp_path / "runs"
    made(root, 0)
    made(root, 1, RunState(Phase.done, exit_code=0), job="1")
    made(root, 2, RunState(Phase.failed, exit_code=3, reason="lost n1\nmore"), exp="swe", job="2")
    made(root, 3, RunState(Phase.submitted), job="3")
    made(root, 4, RunState(Phase.running), exp="swe", job="4")
    made(root, 5, RunState(Phase.running), job="5")
    return root


# runs


@pytest.mark.alone
def test_ten_thousand_runs_are_listed_within_a_second(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    for number in range(10_000):
        clock = f"{number // 3600:02}{number // 60 % 60:02}{number % 60:02}"
        run = RunDir(root / f"exp{number % 3}" / f"20260102-{clock}-a")
        run.path.mkdir(parents=True)
        run.state.write_text('{"phase": "done", "exit_code": 0}')
    words = [sys.executable, "-m", "hpcjet.cli"]
    for more in (["runs"], ["runs", "--exp", "exp1", "--json"], ["status", "nothing"]):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run([*words, *more, "--root", str(root)], capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == (2 if more[0] == "status" else 0), done.stderr
        assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1, more
        assert "--json" not in more or len(json.loads(done.stdout)) == 20


def test_states_are_recorded_ones_and_slurms_asked_once(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[str]] = []

    def answer(ids: list[str], **_: object) -> dict[str, JobState]:
        asked.append(sorted(ids))
        known = {"3": JobState(Stage.pending, "PENDING", "Priority"), "4": JobState(Stage.running, "RUNNING")}
        return {each: known.get(each, JobState(Stage.ended, "NODE_FAIL")) for each in ids}

    monkeypatch.setattr("hpcjet.console.listing.job_states", answer)
    command("runs", "--root", str(root), "--json")
    listed = json.loads(capsys.readouterr().out)
    assert [row["state"] for row in listed] == ["prepared", "done", "failed", "queued", "running", "lost"]
    assert listed[3]["reason"] == "Priority" and "NODE_FAIL" in listed[5]["reason"] and asked == [["3", "4", "5"]]
    (run,) = (root / "swe").glob(f"{listed[4]['run']}")
    (run / "progress.json").write_text(
        '{"kind": "swarm", "row": {"version": 3}, "goals": {"updates": 9}, "updated": 1}'
    )
    command("runs", "--root", str(root), "--state", "running")
    assert capsys.readouterr().out.strip().endswith("\tupdate 3/9")
    command("runs", "--root", str(root), "--state", "lost", "--state", "queued", "--exp", "noop")
    assert [line.split("\t")[1] for line in capsys.readouterr().out.splitlines()] == ["queued", "lost"]
    command("runs", "--root", str(root), "-n", "2")
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_an_unknown_state_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command("runs", "--root", str(root), "--state", "dead", code=2)
    assert "--state dead is not known: choose of prepared, submitted" in capsys.readouterr().err


def test_rows_on_a_terminal_of_80_columns(root: Path) -> None:
    listed = rows(root, exps=["swe"], states=["failed"], most=None)
    out = io.StringIO()
    print_rows(listed, Console(file=out, force_terminal=True, width=80, color_system=None), now=listed[0].launched + 90)
    text = out.getvalue()
    assert "swe/20260102-000002-a00002" in text and "lost n1" in text and "2 min" in text and "more" not in text
    assert all(len(line) <= 80 for line in text.splitlines())


# find


@pytest.mark.parametrize("word", ["last", "latest", "20260102-000005", "noop/20260102-000005", "a00005", "00005"])
def test_a_run_is_found_by_the_start_or_end_of_its_name(root: Path, word: str) -> None:
    assert find_run(word, root).path.name == "20260102-000005-a00005"


def test_a_name_that_fits_several_is_told(root: Path) -> None:
    with pytest.raises(ConfigError, match=r"run=20260102 is not unique under"):
        find_run("20260102", root)


# logs


@pytest.fixture
def logged(tmp_path: Path) -> RunDir:
    run = RunDir(tmp_path / "r")
    for name in ("7-0/n1.log", "7-0/n1.ray.log", "7-0/n10.log", "7-1/n2.log"):
        (run.path / "logs" / name).parent.mkdir(parents=True, exist_ok=True)
        (run.path / "logs" / name).write_text(f"{name}\n")
    run.submit_folder.mkdir()
    (run.submit_folder / "7_0_log.out").write_text("submitit\n")
    return run


def names(files: list[Path]) -> set[str]:
    return {f"{file.parent.name}/{file.name}" for file in files}


def test_logs_by_node_and_restart(logged: RunDir) -> None:
    assert len(log_files(logged)) == 5
    assert names(log_files(logged, node="n1")) == {"7-0/n1.log", "7-0/n1.ray.log"}
    assert names(log_files(logged, restart=1)) == {"7-1/n2.log"}
    with pytest.raises(ConfigError, match="--node n3: it has no logs here; choose one of n1, n10, n2"):
        log_files(logged, node="n3")
    with pytest.raises(ConfigError, match="--restart 5: there are no logs of it; there are 0, 1"):
        log_files(logged, restart=5)


def test_logs_are_followed_in_whole_lines_until_the_run_is_over(
    logged: RunDir, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hpcjet.console.logs.POLL_S", 0)
    file, looks = logged.path / "logs/7-1/n2.log", iter(range(9))
    file.write_text("".join(f"old {number}\n" for number in range(1000)))

    def is_over() -> bool:
        look = next(looks)
        with file.open("a") as out:
            out.write(["one ", "two\nthr", "ee\n"][look])
        if look == 1:
            (file.parent / "n9.log").write_text("a new file\n")
        return look == 2

    follow_files(lambda: log_files(logged, restart=1), is_over)
    text = capsys.readouterr().out
    assert "one two\n" in text and "three\n" in text and "a new file\n" in text
    assert "old 999" in text and "old 5\n" not in text


# use of the nodes


SACCT = """\
12|COMPLETED|100|2|16|00:13:20||billing=16,cpu=16,gres/gpu=4,mem=32G,node=2|
12.batch|COMPLETED|100|1|8|00:00.500|1000K|cpu=8,mem=16G|cpu=00:00:00
12.0|COMPLETED|100|2|16|00:13:19|8G|cpu=16,gres/gpu=4,mem=32G|cpu=00:13:19,gres/gpumem=1G,gres/gpuutil=200
"""


def entry(event: Event, t: float) -> Entry:
    return Entry(t=t, event=event.value, allocation="12", restart=0)


def test_use_of_the_nodes() -> None:
    events = [entry(Event.allocated, 0), entry(Event.workload_start, 8), entry(Event.workload_end, 98.5),
              entry(Event.released, 99)]  # fmt: skip
    found = efficiency(SACCT, events)
    assert found and (found.nodes, found.elapsed_s, found.gpus) == (2, 100, 4)
    assert (found.cpu, found.memory, found.gpu) == (0.5, 0.5, 0.5)
    assert (found.before_s, found.after_s, found.idle_node_s) == (8, 0.5, 17)
    assert lines(found) == [
        "2 nodes for 100 s", "CPU: 50% of what was held", "memory: 50% of a node's at the most", "GPUs: 4, 50% used",
        "idle: 8.0 s before the work, 0.5 s after it, 17 node-seconds",
    ]  # fmt: skip


def test_the_components_of_a_heterogeneous_job_are_taken_together() -> None:
    """As sacct of 22.05 lists them: a number of its own for each."""
    rows = [
        "9|COMPLETED|100|1|1|00:01:40||cpu=1,mem=2G,node=1|", "9.0|COMPLETED|100|1|1|00:01:40|1G|cpu=1|",
        "10|COMPLETED|100|2|4|00:01:40||cpu=4,mem=4G,node=2,gres/gpu=4|",
        "10.0|COMPLETED|100|2|4|00:01:40|1536M|cpu=4|gres/gpuutil=200",
    ]  # fmt: skip
    found = efficiency("\n".join(rows), [])
    assert found and (found.nodes, found.elapsed_s, found.gpus) == (3, 100, 4)
    assert (found.cpu, found.memory, found.gpu) == (200 / 500, 0.75, 0.5)


def test_what_is_not_known_is_not_made_up() -> None:
    assert efficiency("", []) is None
    found = efficiency("12|RUNNING|0|1|4|00:00:00||cpu=4|\n", [])
    assert found and (found.cpu, found.memory, found.gpu, found.idle_node_s) == (None, None, None, None)
    assert lines(found) == ["1 node for 0 s"]


@pytest.mark.parametrize(
    ("text", "value"), [("", 0), ("01:02.500", 62.5), ("1-02:03:04", 93784), ("00:00:07", 7), ("2-00:00:00", 172800)]
)
def test_sacct_times(text: str, value: float) -> None:
    assert (elapsed_s(text) or 0) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [("", 0), ("1K", 1024), ("1.5G", 1.5 * 1024**3), ("500", 512_000), ("4Gn", 4 * 1024**3), ("2Mc", 2 * 1024**2)],
)
def test_sacct_sizes(text: str, value: float) -> None:
    assert size(text) == value


# completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_a_shell(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    command("completion", shell)
    code = capsys.readouterr().out
    assert f"hpcjet completion {shell}" in code
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=code, text=True, check=True)


def test_bash_is_answered_with_commands_and_runs(root: Path, tmp_path: Path) -> None:
    def completed(line: str) -> set[str]:
        env = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "COMP_TYPE": "9",
               "_ARGCOMPLETE_IFS": "\n", "_ARGCOMPLETE_SHELL": "bash"}  # fmt: skip
        script = "import os, sys; os.dup2(1, 8); from hpcjet import cli; sys.argv = ['hpcjet']; cli.main()"
        done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, cwd=tmp_path,
                              check=False)  # fmt: skip
        return {word.strip() for word in done.stdout.split("\n") if word.strip()}

    assert {"status", "runs"} <= completed("hpcjet ")
    assert completed("hpcjet status 20260102-000005") == {"20260102-000005-a00005"}
    assert "a00005" in completed("hpcjet logs a0")


def test_names_of_runs_for_a_prefix(root: Path) -> None:
    from argparse import Namespace

    assert run_names("a00003", Namespace(root=root)) == ["a00003"]
    assert run_names("la", Namespace(root=root)) == ["latest"]
