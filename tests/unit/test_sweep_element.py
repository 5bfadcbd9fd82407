"""What happens in an allocation of a sweep: its script, its points side by side, their run directories."""

import json
import os
import signal
import threading
import time
from pathlib import Path

import pytest

from hpcjet.cluster.signals import Interrupted, signals_raise
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.config.plain import from_dict
from hpcjet.plan import make_plan, read_plan
from hpcjet.slurm.submission import Submission
from hpcjet.start import read_submission
from hpcjet.sweep.axes import read_request
from hpcjet.sweep.crew import Crew
from hpcjet.sweep.element import out_of_memory
from hpcjet.sweep.folder import Array, SweepDir
from hpcjet.sweep.planning import plan_sweep
from hpcjet.sweep.prepared import element_of, prepare
from hpcjet.sweep.script import render
from hpcjet.sweep.states import read_word
from hpcjet.sweep.submit import described
from hpcjet.sweep.verify import is_anothers, lost

WORDS = ["+exp=mpi", "cluster=slurm", "exp.command=x", "exp.workdir=/tmp"]


def script(tmp_path: Path, *words: str, array: Array) -> str:
    config = compose([*WORDS, *words])
    assert isinstance(config.cluster, SlurmConfig)
    sweep = SweepDir(tmp_path / "a b" / "sweep")
    plan = make_plan(config, run_dir=sweep.run(0), python="/my env/bin/python")
    return render(plan, config.cluster, sweep=sweep, array=array)


def test_the_script_of_an_array(tmp_path: Path) -> None:
    array = Array(number=2, token="t", points=list(range(30)), parallelism=8)
    text = script(tmp_path, "cluster.time_min=30", "cluster.setup=[module load x]", array=array)
    folder = tmp_path / "a b" / "sweep"
    lines = [line for line in text.splitlines() if line.startswith(("#SBATCH", "exec", "module", "trap"))]
    assert lines == [
        "#SBATCH --array=0-29%8",
        "#SBATCH --comment='hpcjet sweep'",
        "#SBATCH --job-name=hpcjet-mpi",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --open-mode=append",
        f"#SBATCH --output='{folder}/arrays/002-%a.log'",
        "#SBATCH --requeue",
        "#SBATCH --signal=B:USR2@90",
        "#SBATCH --time=30",
        "module load x",
        "trap '' USR2",
        f"exec '/my env/bin/python' -u -m hpcjet.sweep.element '{folder}' 2",
    ]


def test_packs_are_elements_and_several_nodes_are_warned_by_srun(tmp_path: Path) -> None:
    array = Array(number=0, token="t", points=list(range(30)), pack=8, parallelism=64)
    text = script(tmp_path, "cluster.nodes=2", array=array)
    assert "#SBATCH --array=0-3%4\n" in text and "#SBATCH --signal=USR2@90\n" in text


def test_the_run_directory_of_a_point(tmp_path: Path) -> None:
    plan = plan_sweep(read_request([*WORDS, "seed=1,2", "cluster.requeue=true", "+cluster.env.A=a"]))
    about, points = described(plan, WORDS)
    sweep = SweepDir(tmp_path / "runs" / "sweeps" / "s")
    sweep.make()
    array = Array(number=0, token="t", points=[0, 1], pack=2, submitted=50.0)
    mine = Submission("slurm", "12_1", token="t")
    made = prepare(sweep, about, array, points[1], mine, fresh=True)
    run = sweep.run(1)
    assert read_plan(run.plan.read_text()) == made and not made.requeue
    assert made.env["HPCJET_SEED"] == "2" and from_dict(made.config) == plan.configs[1]
    assert read_submission(run) == mine
    state, token = read_word(run.state), run.secret("ray-token").read_text()
    assert state is not None and (state.phase.value, state.updated) == ("submitted", 50.0)
    assert run.path.stat().st_mode & 0o77 == 0 and run.secret("ray-token").stat().st_mode & 0o77 == 0
    run.state.write_text(json.dumps({"phase": "interrupted", "updated": 60.0}))
    prepare(sweep, about, array, points[1], mine, fresh=False)
    assert run.secret("ray-token").read_text() == token
    assert (again := read_word(run.state)) is not None and again.updated == 60.0


def test_the_number_of_an_element() -> None:
    assert [element_of({"SLURM_ARRAY_TASK_ID": "7"}), element_of({})] == [7, 0]


def test_a_crew_runs_a_bounded_number_at_a_time(tmp_path: Path) -> None:
    def work(point: int, place: int) -> int:
        (tmp_path / f"{place}-at-work").touch(exist_ok=False)
        count = len(list(tmp_path.glob("*-at-work")))
        time.sleep(0.05)
        (tmp_path / f"{place}-at-work").unlink()
        return count

    crew = Crew(work, at_once=3, stops_with_one=True)
    crew.run(range(8))
    assert set(crew.codes) == set(range(8)) and max(crew.codes.values()) <= 3 and not crew.was_stopped


def kill_myself(point: int, place: int) -> int:
    if point == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    if point == 2:
        raise RuntimeError("this belongs into the log")
    if point == 3:
        raise SystemExit(7)
    return 0


def test_one_that_dies_takes_no_other_along(capfd: pytest.CaptureFixture[str]) -> None:
    crew = Crew(kill_myself, at_once=1, stops_with_one=True)
    crew.run(range(5))
    assert crew.codes == {0: 0, 1: 137, 2: 3, 3: 7, 4: 0}
    assert "this belongs into the log" in capfd.readouterr().err


@pytest.mark.parametrize(("stops", "begun"), [(True, [0, 1]), (False, [0, 1, 2, 3])])
def test_after_one_that_was_stopped_none_is_begun(stops: bool, begun: list[int]) -> None:
    crew = Crew(lambda point, place: 130 if point == 1 else 0, at_once=1, stops_with_one=stops)
    crew.run(range(4))
    assert list(crew.codes) == begun and crew.was_stopped is stops


def test_a_signal_is_passed_on_and_waited_for(tmp_path: Path) -> None:
    def stop_in_order(point: int, place: int) -> int:
        try:
            with signals_raise(signal.SIGUSR2):
                (tmp_path / str(point)).touch()
                time.sleep(900)
        except Interrupted:
            return 130
        return 0

    def warn() -> None:
        while len(list(tmp_path.iterdir())) < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGUSR2)

    crew = Crew(stop_in_order, at_once=2, stops_with_one=True)
    threading.Thread(target=warn, daemon=True).start()
    with pytest.raises(Interrupted), signals_raise(signal.SIGUSR2):
        crew.run(range(4))
    assert crew.codes == {0: 130, 1: 130}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("srun: error: n1: task 0: Out Of Memory\n", True),
        ("slurmstepd-n1: error: Detected 1 oom-kill event(s) in StepId=4.0.\n", True),
        ("slurmstepd: error: Detected 2 oom_kill events in StepId=4.0.\n", True),
        ("srun: error: n1: task 0: Exited with exit code 1\n", False),
        ("the program is about Out Of Memory errors\n" + "x\n" * 20, False),
    ],
)
def test_a_program_that_ran_out_of_memory(tmp_path: Path, text: str, found: bool) -> None:
    (tmp_path / "output.log").write_text(text)
    assert out_of_memory(tmp_path / "output.log") is found
    assert not out_of_memory(tmp_path / "none.log")


SLURM = """\
#!/bin/sh
case "$0 $*" in
    */squeue*) echo "12|/s/000.sbatch mine"; echo "13|/s/001.sbatch theirs";;
    */scontrol*" 14") echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1;;
    */scontrol*" 15") echo "JobId=15 Command=/s/003.sbatch here";;
    */scontrol*" 16") echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1;;
    */scontrol*) echo "JobId=13 Command=/s/001.sbatch theirs";;
esac
"""


def test_a_job_is_lost_only_if_two_commands_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("squeue", "scontrol"):
        (tmp_path / name).write_text(SLURM)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    jobs = {"12": "mine", "13": "taken", "14": "gone", "15": "here", "16": "away", "17;alpha": "elsewhere"}
    arrays = [Array(number=n, token=token, points=[n], job=job) for n, (job, token) in enumerate(jobs.items())]
    sweep = SweepDir(tmp_path / "s")
    assert [array.token for array in lost(sweep, arrays)] == ["taken", "gone"]
    run = sweep.run(2)
    run.path.mkdir(parents=True)
    run.submission.write_text(json.dumps({"token": "gone", "job_id": "14_0"}))
    assert [array.token for array in lost(sweep, arrays)] == ["taken"], "an element of the other one has run"
    held = {"12": "mine", "13": "theirs"}
    assert [is_anothers(array, held) for array in arrays] == [False, True, False, False, False, False]
    assert not is_anothers(arrays[1], None)
