"""What must not be reached from inside: the rows of the tables, on every field."""

import pytest
from attack import LANDLOCK, REACHES, Attack
from estate import MARK
from field import Field
from rows_files import ROWS as FILES
from rows_kernel import ROWS as KERNEL
from rows_network import ROWS as NETWORK
from rows_processes import ROWS as PROCESSES

ROWS = (*FILES, *PROCESSES, *KERNEL, *NETWORK)


@pytest.mark.parametrize("attack", ROWS, ids=lambda row: row.name)
def test_nothing_outside_is_reached(attack: Attack, field: Field, request: pytest.FixtureRequest) -> None:
    if attack.waits_for:
        request.applymarker(pytest.mark.xfail(reason=f"waits for {attack.waits_for}", strict=True))
    field.estate.touched()
    box = field.shared()
    done = field.attack(attack)
    if attack.spoils:
        box = field.shared(fresh=True)
    traces = field.estate.touched()
    assert not traces, (traces, done)
    assert b"REACHED" not in done.output and MARK.encode() not in done.output, done
    assert not done.error and not done.timed_out, done
    assert not attack.after or not attack.after(field), done
    assert field.run(box, "echo usable").output == b"usable\n"


@pytest.mark.parametrize("attack", [row for row in ROWS if row.process != REACHES], ids=lambda row: row.name)
def test_without_namespaces_less_is_promised(attack: Attack, processes: Field) -> None:
    if attack.process == LANDLOCK and processes.found["landlock"] < 6:
        pytest.skip(f"the kernel has version {processes.found['landlock']} of Landlock; 6 is needed for all rows")
    processes.estate.touched()
    processes.shared()
    done = processes.attack(attack)
    traces = processes.estate.touched()
    if attack.spoils:
        processes.shared(fresh=True)
    assert not traces and b"REACHED" not in done.output and MARK.encode() not in done.output, (traces, done)


@pytest.mark.parametrize("attack", [row for row in ROWS if row.control], ids=lambda row: row.name)
def test_without_a_sandbox_it_is_reached(attack: Attack, usual: Field) -> None:
    """Else the row would prove nothing."""
    said = usual.outside(attack)
    usual.estate.touched()
    assert b"REACHED" in said, said
