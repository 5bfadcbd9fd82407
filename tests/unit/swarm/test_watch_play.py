"""hpcjet swarm play, and what other commands say of a training."""

import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import in_browser
from rich.console import Console
from watch_scenes import checkpoint, make_run, told_run, trainer

from hpcjet import cli
from hpcjet.config.swarm.environment import GymnasiumConfig, PettingZooConfig
from hpcjet.outcome import outcome_facts, print_outcome
from hpcjet.rundir import RunDir
from hpcjet.swarm.environment import make_vector
from hpcjet.swarm.policy import PolicyConfig
from hpcjet.swarm.trainer import Trainer, TrainerConfig
from hpcjet.swarm.watch import SwarmFiles, record_trajectory
from hpcjet.swarm.watch.dots import Canvas
from hpcjet.swarm.watch.png import png
from hpcjet.swarm.watch.reel import film_world, reel
from hpcjet.swarm.watch.terminal import show_formation

SMALL = ("exp.environment.agents=6", "exp.environment.steps=12", "exp.policy.hidden=[8]")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """Of a tiny formation, with checkpoints 1 and 12, below the working directory."""
    made = make_run(tmp_path, *SMALL)
    checkpoint(made, trainer(), 1, 12)
    monkeypatch.chdir(tmp_path)
    return made


def play(*words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["swarm", "play", *words])
    out, error = capsys.readouterr()
    return int(end.value.code or 0), out, error


def test_the_newest_policy_is_shown_in_a_page(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = play("latest", capsys=capsys)
    page = Path(out.strip())
    assert code == 0 and page.samefile(SwarmFiles.of(run).path / "play.html")
    shown = in_browser(page.absolute(), tmp_path, "--virtual-time-budget=2000")
    assert "12</b><span>updates before it" in shown and 'data-ready="yes"' in shown and "of 12, " in shown


def test_other_checkpoints_numbers_and_seeds(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    told = []
    for words in (["--seed", "1"], ["--seed", "2"], ["--checkpoint", "1", "--seed", "1", "--agents", "30"]):
        code, out, _ = play(str(run), "--json", "--out", "x.html", *words, capsys=capsys)
        assert code == 0 and Path("x.html").stat().st_size > 10_000
        told.append(json.loads(out))
    assert [each["version"] for each in told] == [12, 12, 1]
    assert len({each["return"] for each in told}) == 3 and 'data-agents="30"' in Path("x.html").read_text()


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--checkpoint", "7"], "--checkpoint=7 is not allowed: there are 1, 12"),
        (["--agents", "0"], "--agents=0 is not allowed: it must be at least 1"),
        (["--seed", "-1"], "--seed=-1 is not allowed"),
        (["--out", "none/x.html"], "--out=none/x.html is not allowed: its folder does not exist"),
        (["--out", "x.html", "--terminal"], "not allowed with argument"),
        (["--agnets", "3"], "unrecognized arguments: --agnets 3"),
    ],
    ids=["checkpoint", "agents", "seed", "folder", "two ways", "typo"],
)
def test_wrong_requests_are_answered(
    run: RunDir, words: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = play(str(run), *words, capsys=capsys)
    assert code == 2 and error in told


def test_runs_without_checkpoints_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    code, _, told = play(str(run), capsys=capsys)
    assert code == 2 and "it is no training, or has not begun" in told
    SwarmFiles.of(run).path.mkdir()
    code, _, told = play(str(run), capsys=capsys)
    assert code == 2 and "there is no checkpoint in it" in told
    code, _, told = play(str(run), "--checkpoint", "3", capsys=capsys)
    assert code == 2 and "there are none yet" in told


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_played(
    run: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    file = SwarmFiles.of(run).checkpoints / "00000012" / "learner.npz"
    file.write_bytes(file.read_bytes()[:-100])
    code, out, _ = play(str(run), "--json", capsys=capsys)
    assert code == 0 and json.loads(out)["version"] == 1
    code, _, told = play(str(run), "--checkpoint", "12", capsys=capsys)
    assert code == 2 and "checkpoint 12 of" in told and "is damaged" in told


def test_without_a_terminal_moments_are_printed(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = play(str(run), "--terminal", "--agents", "20", capsys=capsys)
    assert code == 0 and [f"step {step} of 12, " in out for step in (0, 6, 12)] == [True] * 3
    assert "\x1b" not in out and max(map(len, out.splitlines())) <= 42
    assert not (SwarmFiles.of(run).path / "play.html").exists()


def test_in_a_terminal_it_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    made = trainer()
    monkeypatch.setattr("hpcjet.swarm.watch.terminal.SECONDS", 0.5)
    console = Console(force_terminal=True, width=80, height=24, record=True, legacy_windows=False)
    show_formation(record_trajectory(made.vector.config, made.policies), console)
    lines = console.export_text().splitlines()
    assert "step 12 of 12, " in lines[-1] and max(map(len, lines)) <= 80


def test_every_agent_has_a_dot() -> None:
    made = trainer(agents=9)
    path = record_trajectory(made.vector.config, made.policies)
    for braille in (True, False):
        cells = Canvas(path, 30, braille=braille).draw(0)
        assert len(cells.lines) == 30 and max(map(len, cells.lines)) <= 60
        assert 7 <= (cells.free | cells.held).sum() <= 9
        letters = {letter for line in cells.lines for letter in line}
        assert letters <= ({" ", "·"} | set(map(chr, range(0x2800, 0x2900))) if braille else set(" .*o"))


def other(environment: Any) -> Trainer:
    vector = make_vector(environment, 2, seed=0, first_world=0, with_state=False)
    made = Trainer(vector, TrainerConfig(steps=8, policy=PolicyConfig(hidden=[8])))
    made.iterate()
    vector.close()
    return made


@pytest.mark.parametrize(
    "environment",
    [
        GymnasiumConfig("CartPole-v1"),
        GymnasiumConfig("FrozenLake-v1"),
        PettingZooConfig("mpe2.simple_spread_v3", kwargs={"max_cycles": 5}),
    ],
    ids=["CartPole", "FrozenLake", "simple_spread"],
)
def test_other_environments_draw_themselves(environment: GymnasiumConfig | PettingZooConfig) -> None:
    pytest.importorskip("pygame")
    found = film_world(environment, other(environment).policies, {}, seed=0)
    assert found is not None and found.images and not found.texts
    assert found.steps[0] == 0 and len(found.images) == len(found.steps)


def test_environments_that_cannot_draw_have_no_film() -> None:
    plain = GymnasiumConfig("gymnasium.envs.classic_control.cartpole:CartPoleEnv")
    policies = other(plain).policies
    assert film_world(GymnasiumConfig("swarm_blind:make"), policies, {}, seed=0) is None


def test_a_page_of_gymnasium_has_pictures_and_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pygame")
    run = make_run(tmp_path, "+exp=gymnasium", "exp.policy.hidden=[8]", exp="")
    checkpoint(run, other(GymnasiumConfig("CartPole-v1")), 3)
    monkeypatch.chdir(tmp_path)
    code, out, _ = play("latest", capsys=capsys)
    shown = in_browser(Path(out.strip()).absolute(), tmp_path, "--virtual-time-budget=2000")
    assert code == 0 and 'data-ready="yes"' in shown and "return of agent" in shown and 'src="data:image/png' in shown
    code, out, _ = play("latest", "--terminal", capsys=capsys)
    assert code == 0 and len(out.splitlines()) == 5 and out.startswith("episode\tsteps\treturn of agent")
    code, _, told = play("latest", "--agents", "3", capsys=capsys)
    assert code == 2 and "only a formation takes another number" in told


def test_frames_that_are_none_are_left_out_and_texts_are_made_safe() -> None:
    picture = np.zeros((4, 6, 3), dtype=np.uint8)
    found = reel([None, picture, "x", picture], "rgb_array")
    assert found is not None and found.steps == [1, 3]
    found = reel(["\x1b[41mS\x1b[0mF\n", 3, "<b>"], "ansi")
    assert found is not None and found.texts == ["SF\n", "<b>"] and found.steps == [0, 2]
    assert reel([None], "ansi") is None and reel([], "rgb_array") is None
    long = reel([picture] * 1000, "rgb_array")
    assert long is not None and len(long.images) == 250 and long.steps[-1] == 999


def test_a_png_holds_the_picture() -> None:
    rng = np.random.default_rng(0)
    picture = rng.integers(0, 255, (30, 50, 3), dtype=np.uint8)
    data = png(picture)
    assert data.startswith(b"\x89PNG\r\n\x1a\n") and data[16:24] == (50).to_bytes(4, "big") + (30).to_bytes(4, "big")
    start = data.index(b"IDAT") + 4
    lines = np.frombuffer(zlib.decompress(data[start:-16]), dtype=np.uint8).reshape(30, 151)
    assert (lines[:, 0] == 0).all() and (lines[:, 1:].reshape(30, 50, 3) == picture).all()
    assert int.from_bytes(png(np.zeros((900, 500, 3), dtype=np.uint8))[20:24], "big") == 300


def test_outcome_and_report_of_a_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = told_run(tmp_path)
    monkeypatch.chdir(tmp_path)
    console = Console(width=80, record=True)
    print_outcome(run, console)
    text = console.export_text()
    assert "8.0 M  agent steps in 100 updates" in text and str(run.path) in text
    assert outcome_facts(run)["metrics"]["held"]["best"] == 0.95
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        cli.main(["report", "latest"])
    assert end.value.code == 0 and run.report.is_file() and str(run.report.name) in capsys.readouterr().out
