"""A model of the data flow of the swarm: what each part has to carry, and which of them is full first.

    python tests/bench/swarm_scaling.py [--svg docs/swarm-scaling.svg] [--check scale.jsonl]

It counts, for one update, the bytes into and out of each kind of node and the CPU time of the index, by the same rules
as the product moves things; what the index needs for a fragment was measured by swarm_plane.py. `--check` compares the
counts with lines of `swarm_plane.py scale`.
"""

import argparse
import json
import math
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True)
class Setup:
    """A training. The defaults are the formation with 100 agents in a world, on nodes of 64 cores."""

    nodes: int = 10
    """That act."""
    seats: int = 64
    """On each node, one fragment each for an update."""
    steps: int = 100
    worlds: int = 4
    """Of a seat."""
    agents: int = 100
    """Of a world."""
    step_bytes: float = 112.0
    """Of an agent's step in a fragment: observation, action, reward, flags, log-probability, value."""
    agent_steps_per_core: float = 500_000.0
    """Acted, a second."""
    learned_share: float = 1.0
    """Of what is made."""
    agent_steps_per_rank: float = 2_000_000.0
    """Learned from, a second."""
    ranks: int = 1
    weights_bytes: float = 50_000.0
    """Two networks of 64 x 64 and their normalisers."""
    optimiser_steps: int = 64
    """Of an update."""
    link: float = 1.25e9
    """Bytes a second of a node's network, each way: 10 Gbit/s."""
    index_call_s: float = 1.5e-3
    """CPU time of the index for a call, nearly all of it Ray's: 1.0 to 1.3 ms without a pause, up to 2.4 ms where all
    sleep between two calls (measured)."""
    index_fragment_s: float = 120e-6
    """For a fragment within calls: to let it begin, to take it in, to choose it, and to send that (measured)."""
    spread: float = 0.1
    """The share of a fragment's time over which the seats of a node come to ask; 1 where they act one after another."""
    collect: float = 0.02
    """The share of it for which a pool collects questions (`pace.SHARE`)."""
    calls_per_update: float = 3.0
    """Of the learner: sample, done, advance."""
    central: bool = False

    @property
    def fragments(self) -> int:
        """Of an update."""
        return self.nodes * self.seats

    @property
    def fragment_bytes(self) -> float:
        return self.fragment_steps * self.step_bytes

    @property
    def fragment_steps(self) -> int:
        """Of agents."""
        return self.steps * self.worlds * self.agents


@dataclass(frozen=True)
class Update:
    """What one update moves and takes."""

    learner_in: float
    """Bytes into the node of a rank."""
    node_in: float
    """Bytes of weights into a node that acts."""
    server_out: float
    """Bytes of weights out of the node of the primary, if no node passes them on."""
    reduce: float
    """Bytes out of a rank for sums over ranks."""
    index_s: float
    """CPU seconds of the index."""
    act_s: float
    """Seconds that acting takes, on all nodes at once."""
    learn_s: float
    """Seconds that learning takes, on all ranks at once."""


def flows(setup: Setup) -> Update:
    """By the rules of the data plane: fragments once to the rank that learns from them, weights once to each node."""
    made = setup.fragments * setup.fragment_bytes
    moved = made if setup.central else made * setup.learned_share
    others = setup.ranks - 1
    return Update(
        learner_in=moved / (1 if setup.central else setup.ranks),
        node_in=setup.weights_bytes,
        server_out=setup.nodes * setup.weights_bytes,
        reduce=2 * others / setup.ranks * setup.weights_bytes * setup.optimiser_steps,
        index_s=(calls(setup) + frees(setup)) * setup.index_call_s + setup.fragments * setup.index_fragment_s,
        act_s=setup.fragment_steps / setup.agent_steps_per_core,
        learn_s=setup.fragments * setup.fragment_steps * setup.learned_share / setup.agent_steps_per_rank / setup.ranks,
    )


def calls(setup: Setup) -> float:
    """Of the index, for an update: to begin and to insert, by each pool for those of its seats that come together."""
    together = min(setup.seats, 1 + setup.spread / setup.collect)
    return 2 * setup.nodes * together + setup.calls_per_update


def frees(setup: Setup) -> float:
    """Calls that the index makes for an update: each pool is told what it may free."""
    return setup.nodes


def times(setup: Setup) -> dict[str, float]:
    """Seconds for which an update keeps each part busy; all work at the same time, so the longest is the bottleneck."""
    one = flows(setup)
    return {
        "acting": one.act_s,
        "learning": one.learn_s,
        "index": one.index_s,
        "fetches": one.learner_in / setup.link,
        "weights": one.server_out / setup.link,
        "all-reduce": one.reduce / setup.link,
    }


def bottleneck(setup: Setup) -> tuple[str, float]:
    """The part that is busy longest, and agent-steps a second in all."""
    busy = times(setup)
    name = max(busy, key=busy.__getitem__)
    return name, setup.fragments * setup.fragment_steps / busy[name]


SLOW = Setup(ranks=0, agents=10, worlds=1, steps=500, agent_steps_per_core=5_000.0, step_bytes=300.0)
"""A simulator that gives a core 5,000 agent-steps a second, 64 floats each; fragments take a second."""
CASES = {
    "the formation (500,000 agent-steps/s a core), 1 rank": Setup(),
    "a simulator of 5,000 agent-steps/s a core, ranks as needed": SLOW,
    "the same, a tenth is learned from": replace(SLOW, learned_share=0.1),
    "the same, central pool": replace(SLOW, learned_share=0.1, central=True),
    "the simulator with 10 MB of weights": replace(SLOW, weights_bytes=10e6),
}
NODES = (1, 10, 100, 1000)


def at(case: Setup, nodes: int) -> Setup:
    """With as many nodes, and as many ranks as keep up with acting where the case leaves that open."""
    sized = replace(case, nodes=nodes, ranks=case.ranks or 1)
    if case.ranks:
        return sized
    one = flows(sized)
    return replace(sized, ranks=max(1, round(one.learn_s / one.act_s + 0.499)))


def limits(setup: Setup) -> dict[str, float]:
    """What each part must not exceed for acting to be the bottleneck at this size."""
    second = flows(setup).act_s
    return {
        "fragment: seconds, for this index": flows(setup).index_s,
        "index: fragments/s": setup.fragments / second,
        "learner: GB/s into each rank": flows(setup).learner_in / second / 1e9,
        "primary: GB/s of weights": flows(setup).server_out / second / 1e9,
    }


def check(lines: list[dict[str, object]]) -> list[dict[str, object]]:
    """Measured over predicted, by the number of nodes."""
    found: list[dict[str, object]] = []
    for line in lines:
        nodes, seats = int(str(line["acting_nodes"])), int(str(line["seats_per_node"]))
        fragment, weights = float(str(line["fragment_bytes"])), float(str(line["weights_bytes"]))
        # The bench's seats of a node act one after another, in one process.
        setup = Setup(nodes=nodes, seats=seats, steps=1, worlds=1, agents=1, step_bytes=fragment, weights_bytes=weights,
                      spread=1.0)  # fmt: skip
        one, got = flows(setup), line["node_bytes_per_update"]
        idle = float(str(line["index_idle_share"])) * float(str(line["update_s"]))
        assert isinstance(got, list)
        found.append({
            "nodes": nodes,
            "learner_in": round(float(str(line["learner_bytes_per_update"])) / one.learner_in, 3),
            "node_in": [round(each / one.node_in, 3) for each in got],
            "index_calls": round(float(str(line["index_calls_per_update"])) / calls(setup), 3),
            "index_cpu": round(
                float(str(line["index_cpu_us_per_fragment"])) * setup.fragments / (one.index_s + idle) / 1e6, 3
            ),
        })  # fmt: skip
    return found


COLORS = {"acting": "#4c78a8", "learning": "#8c6bb1", "index": "#e07b54", "fetches": "#59a14f", "weights": "#d4a72c",
          "all-reduce": "#c3cad6"}  # fmt: skip


def figure() -> str:
    """An SVG: how long each part is busy for one update, by the number of nodes, as a share of the time of acting."""
    cases = list(CASES.items())
    width, panel, left, top = 940, 190, 40, 70
    height = top + panel * len(cases) + 20
    drawn = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        word(left, 26, "How busy each part is, against acting (1: as long as acting takes; above it, all wait for it)"),
    ]
    for number, name in enumerate(COLORS):
        drawn.append(f'<rect x="{left + 110 * number}" y="42" width="10" height="10" fill="{COLORS[name]}"/>')
        drawn.append(word(left + 14 + 110 * number, 51, name, size=12))
    for row, (title, case) in enumerate(cases):
        base = top + panel * row + panel - 38
        drawn.append(word(left, base - 118, title, size=12))
        drawn.append(f'<line x1="{left}" x2="{width - 20}" y1="{base - 40}" y2="{base - 40}" stroke="#5b6475" '
                     'stroke-dasharray="4 4"/>')  # fmt: skip
        for column, nodes in enumerate(NODES):
            drawn += group(left + 220 * column, base, at(case, nodes))
    return "\n".join([*drawn, "</svg>", ""])


def group(x: float, base: float, setup: Setup) -> list[str]:
    busy = times(setup)
    label = f"{setup.nodes} node{'s' * (setup.nodes > 1)}, {setup.ranks} rank{'s' * (setup.ranks > 1)}"
    drawn = [word(x, base + 16, f"{label}: {bottleneck(setup)[0]}", size=12)]
    for number, (name, seconds) in enumerate(busy.items()):
        ratio = seconds / busy["acting"]
        # 1 is 40 high, and each ten times as much 20 more.
        high = 40 * ratio if ratio <= 1 else 40 + 20 * math.log10(ratio)
        drawn.append(f'<rect x="{x + 24 * number:.1f}" y="{base - high:.1f}" width="20" height="{high:.1f}" '
                     f'fill="{COLORS[name]}"/>')  # fmt: skip
        if ratio >= 0.05:
            drawn.append(
                word(x + 24 * number, base - high - 3, f"{ratio:.2g}" if ratio < 10 else f"{ratio:,.0f}", size=9)
            )
    return drawn


def word(x: float, y: float, text: str, *, size: int = 14) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="#1f2430">{text}</text>'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--svg", type=Path, help="write the figure")
    parser.add_argument("--check", type=Path, help="lines of swarm_plane.py scale")
    options = parser.parse_args()
    for title, case in CASES.items():
        for nodes in NODES:
            setup = at(case, nodes)
            name, rate = bottleneck(setup)
            busy = {part: float(f"{seconds:.3g}") for part, seconds in times(setup).items()}
            print(json.dumps({"case": title, "nodes": nodes, "ranks": setup.ranks, "bottleneck": name,
                              "agent_steps_per_s": float(f"{rate:.3g}"), "busy_s": busy}))  # fmt: skip
    for nodes in NODES:
        needed = {name: float(f"{most:.3g}") for name, most in limits(at(SLOW, nodes)).items()}
        print(json.dumps({"needed_at": nodes, **needed}))
    if options.check:
        lines = [json.loads(line) for line in options.check.read_text().splitlines() if '"scale"' in line]
        for found in check(lines):
            print(json.dumps({"measured_over_predicted": found}))
    if options.svg:
        options.svg.write_text(figure())


if __name__ == "__main__":
    main()
