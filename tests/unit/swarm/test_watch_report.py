"""The report of a training."""

import base64
import hashlib
import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from browser import in_browser
from watch_scenes import make_run, row, told_run, trainer

from hpcjet.config.compose import compose
from hpcjet.errors import ConfigError, StoreError
from hpcjet.plan import make_plan
from hpcjet.rundir import RunDir
from hpcjet.swarm.watch import (
    Loss,
    MetricsLog,
    SeatFacts,
    SwarmFiles,
    Trajectory,
    note_loss,
    record_trajectory,
    write_report,
    write_seats,
)
from hpcjet.swarm.watch.chart import HEIGHT, WIDTH, chart, short, ticks
from hpcjet.swarm.watch.film import film, stills
from hpcjet.swarm.watch.trajectory import load_trajectory
from hpcjet.swarm.watch.views import lag_bars

EVIL = "</script></style><script>document.title='pwned'</script><img src=x onerror=\"document.title='pwned'\">\x1b[31m"


class Page(HTMLParser):
    """Elements with their attributes, and the text of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += f"{data} "

    def of_class(self, name: str) -> list[dict[str, str | None]]:
        return [attrs for _, attrs in self.found if name in (attrs.get("class") or "").split()]


def with_trajectory(tmp_path: Path) -> RunDir:
    run = told_run(tmp_path)
    made = trainer()
    record_trajectory(made.vector.config, made.policies).save(SwarmFiles.of(run).trajectory)
    return run


def test_the_report_tells_it_all_and_needs_nothing_else(tmp_path: Path) -> None:
    run = with_trajectory(tmp_path)
    write_report(run)
    source = run.report.read_text()
    page = Page(source)
    words = " ".join(page.text.split())
    for told in (
        "100 % held, greedy, at the end", "8.0 M agent steps in 100 updates", "40,000 agent steps per second",
        "3 min 20 s wall clock, 2 nodes", "2 losses",
        "1 fault of worlds, such as world 13, agent a, step 6: the reward is nan",
        "node n2 3 4.20 s", "learner rank 1 0 none came",
        "seat-0003 n1 4 1 100 2.0 M 10,000 act 40 %, step 35 %, wait 25 % 1", "return of an agent", "value loss",
        "age of samples, in updates", "60.0 %", "staleness.mode", "environment.agents", "agent that holds its slot",
        "1 node: 1.0 node-hours", "busy 92%",
    ):  # fmt: skip
        assert told in words, told
    assert not re.search(r"""(src|href)=["'](?!data:)""", source) and "://" not in source.replace(str(run.path), "")
    scripts = re.findall(r"<script>(.*?)</script>", source, re.S)
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert len(scripts) == 1 and f"script-src 'sha256-{digest}'" in source
    facts = json.loads(run.summary.read_text())
    assert facts["updates"] == 100 and facts["agent_steps"] == 8_000_000 and facts["lags"]["0"] == 6000
    assert facts["evaluation"] == {"held": 1.0, "return": 1.0}
    assert facts["longest_pause_s"] == 4.2 and facts["nodes"] == ["n0", "n1"] and facts["trajectory"]["agents"] == 6


def test_in_a_browser_the_formation_moves(tmp_path: Path) -> None:
    run = with_trajectory(tmp_path)
    write_report(run)
    page = Page(in_browser(run.report, tmp_path, "--virtual-time-budget=3000"))
    (player,), (strip,) = page.of_class("player"), page.of_class("stills")
    assert "hidden" not in player and player["data-ready"] == "yes" and "hidden" in strip
    assert re.search(r"step \d+ of 12, \d+ % held", page.text)
    for name, options in {"reduced": ["--force-prefers-reduced-motion"], "no script": []}.items():
        source = run.report.read_text()
        still = tmp_path / f"{name}.html"
        # Another hash: the browser refuses to run it, as it would anything that was slipped in.
        still.write_text(source if options else source.replace('"use strict";', '"use strict"; 1;'))
        page = Page(in_browser(still, tmp_path, *options))
        (player,), (strip,) = page.of_class("player"), page.of_class("stills")
        assert "hidden" in player and "hidden" not in strip, name
        assert "step 12, " in page.text and "step 6, " in page.text


def test_hostile_names_are_inert(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    files = SwarmFiles.of(run)
    log = MetricsLog(files.path)
    for version in range(1, 4):
        log.write({**row(version), f"{EVIL}.loss": 1.0, f"metric.{EVIL}": 2.0, f"a.{EVIL}": 3.0, "lags": EVIL})
    log.close()
    note_loss(files.losses, Loss(time=1.0, what=EVIL))
    write_seats(files.seats, [SeatFacts(seat=EVIL, node=EVIL, worlds=1, shares={EVIL: 1.0}, faults=1, fault=EVIL)])
    write_report(run)
    page = Page(in_browser(run.report, tmp_path))
    assert not {"script", "img", "iframe"} & {tag for tag, _ in page.found}
    assert page.text.count("document.title='pwned'") >= 6 and "\x1b" not in run.report.read_text()
    assert "<title>pwned" not in run.report.read_text()


def test_a_training_that_told_nothing_has_a_report(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    SwarmFiles.of(run).path.mkdir()
    SwarmFiles.of(run).trajectory.write_bytes(b"PK\x03\x04 half")
    write_report(run)
    text = Page(run.report.read_text()).text
    assert "No update was recorded" in text and "Nothing: no host, node or learner died" in text
    assert json.loads(run.summary.read_text())["return"] is None


def test_other_runs_have_none(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    with pytest.raises(ConfigError, match=r"plan.json is missing"):
        write_report(run)
    run.plan.write_text(make_plan(compose(["+exp=noop"]), run_dir=run, python="python3").to_json())
    with pytest.raises(ConfigError, match="no training of a swarm but of exp=noop"):
        write_report(run)


def test_no_room_for_a_report_is_told(tmp_path: Path) -> None:
    run = told_run(tmp_path, updates=3)
    run.report.mkdir()
    (run.report / "x").touch()
    with pytest.raises(StoreError, match=r"report.html could not be written: .*hpcjet report"):
        write_report(run)


@pytest.mark.parametrize(
    ("low", "high"), [(0, 1), (-3.2, 1.4), (0, 84_000), (1e-9, 2e-9), (-5, -4.9), (1e6, 1e6 + 1), (0, 1e-30)]
)
def test_ticks_are_round_and_hold_the_range(low: float, high: float) -> None:
    found = ticks(low, high)
    assert 2 <= len(found) <= 6
    assert found[0] <= low + 1e-6 * (high - low) and found[-1] >= high - 1e-6 * (high - low)
    steps = {f"{b - a:.6e}" for a, b in itertools.pairwise(found)}
    assert len(steps) == 1 and float(steps.pop()[0]) in (1, 2, 5)


def test_a_curve_shows_all_of_a_long_training_with_few_points() -> None:
    rows = [{**row(version, updates=5000), "return": float(version % 2)} for version in range(1, 5001)]
    drawn = chart("x", rows, {"return": "r", "none": "nothing", "agent.value_loss": "v"})
    assert drawn is not None and [line.name for line in drawn.lines] == ["r", "v"]
    line = drawn.lines[0]
    points = [tuple(map(float, pair.split())) for pair in line.path[1:].split("L")]
    assert len(points) == 240 and points[-1][0] == WIDTH and all(abs(y - HEIGHT / 2) < 12 for _, y in points)
    band = [float(pair.split()[1]) for pair in line.band[1:-1].split("L")]
    assert min(band) == 0 and max(band) == HEIGHT
    assert drawn.span == ("0", "400 M agent steps")
    assert chart("x", [], {"return": "r"}) is None
    assert chart("x", [{"version": 1, "return": float("nan")}], {"return": "r"}) is None
    one = chart("x", [{"version": 1, "return": 3.0}], {"return": "r"})
    assert one is not None and one.lines[0].last == "3" and one.span[1] == "1 updates"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (-3.127, "-3.13"), (84_123, "84,100"), (12_345_678, "12.3 M"), (999.7, "1,000")],
)
def test_numbers_have_three_digits(value: float, text: str) -> None:
    assert short(value) == text


def test_old_samples_share_a_bar() -> None:
    bars = lag_bars(dict.fromkeys(range(40), 1))
    assert len(bars) == 12 and bars[-1].name == "11 or more" and bars[-1].label == "72.5 %" and bars[-1].width == 100
    assert lag_bars({}) == []


def moved(moments: int, agents: int) -> Trajectory:
    rng = np.random.default_rng(0)
    slots = rng.uniform(-5, 5, (agents, 2)).astype(np.float32)
    start = slots + rng.uniform(-1, 1, slots.shape).astype(np.float32)
    part = np.linspace(0, 1, moments, dtype=np.float32)[:, None, None]
    position = start * (1 - part) + slots * part
    held = np.linalg.norm(position - slots, axis=2) < 0.1
    return Trajectory(position, held, slots, returns=1.0, dt=0.1, version=7, seed=0)


def test_positions_come_out_of_the_page_as_they_went_in() -> None:
    path = moved(21, 50)
    packed = film(path)
    position = np.frombuffer(base64.b64decode(packed.position), dtype="<i2").reshape(21, 50, 2)
    slots = np.frombuffer(base64.b64decode(packed.slots), dtype="<i2").reshape(50, 2)
    bits = np.frombuffer(base64.b64decode(packed.held), dtype=np.uint8).reshape(21, -1)
    assert (np.unpackbits(bits, axis=1)[:, :50].astype(bool) == path.held).all()
    assert (position[-1] == slots).all() and packed.share_held[-1] == 1
    scale = (path.slots[0, 0] - path.slots[1, 0]) / (int(slots[0, 0]) - int(slots[1, 0]))
    away = (position[0].astype(float) - slots) * scale * (1, -1)
    assert np.abs(away - (path.position[0] - path.slots)).max() < 3 * scale


def test_very_many_agents_fit_into_a_page() -> None:
    packed = film(moved(101, 40_000))
    assert len(packed.position) < 9_000_000 and packed.moments >= 26 and packed.steps[-1] == 100
    assert packed.of_agents == 40_000 and 0 < packed.agents <= 40_000
    assert sum(len(each.held) + len(each.free) + len(each.slots) for each in stills(moved(3, 40_000))) < 200_000


def test_a_trajectory_is_greedy_and_ends_where_the_episode_does(tmp_path: Path) -> None:
    made = trainer(agents=5, steps=9)
    path = record_trajectory(made.vector.config, made.policies, seed=3)
    assert path.position.shape == (10, 5, 2) and path.held.shape == (10, 5) and path.version == 1
    assert np.array_equal(record_trajectory(made.vector.config, made.policies, seed=3).position, path.position)
    assert not np.array_equal(record_trajectory(made.vector.config, made.policies, seed=4).position, path.position)
    first = np.linalg.norm(path.position[0] - path.slots, axis=1)
    last = np.linalg.norm(path.position[-1] - path.slots, axis=1)
    # The reward is the way made good, less what collisions cost.
    assert path.returns <= float((first - last).mean()) + 1e-5
    assert np.abs(np.diff(path.position, axis=0)).max() < 0.1 * 1.0 + 1e-6, "no moment of another episode"
    assert record_trajectory(made.vector.config, made.policies, agents=40).agents == 40
    path.save(tmp_path / "swarm" / "t.npz")
    again = load_trajectory(tmp_path / "swarm" / "t.npz")
    assert again is not None and np.array_equal(again.position, path.position) and again.returns == path.returns
    assert load_trajectory(tmp_path / "none.npz") is None
    with pytest.raises(ConfigError, match="no policy other: it has agent"):
        record_trajectory(made.vector.config, made.policies, policy_map={"*": "other"})
