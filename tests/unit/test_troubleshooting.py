"""docs/troubleshooting.md quotes messages that the code really has, and leaves out no kind of error."""

import ast
import re
from pathlib import Path

import pytest

import hpcjet
from hpcjet import errors

PAGE = Path(__file__).parents[2] / "docs/troubleshooting.md"
ROWS = [line.split(" | ")[0].lstrip("| ") for line in PAGE.read_text().splitlines() if line.startswith("| `")]
PARTS = [part for row in ROWS for part in re.findall(r"`([^`]+)`", row)]


def literal(node: ast.expr) -> str:
    """The text of a string in the source, with … for what is filled in."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(literal(each) for each in node.values)
    return "…"


NODES = [node for path in Path(hpcjet.__file__).parent.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))]
TEXTS = {literal(node) for node in NODES if isinstance(node, ast.JoinedStr | ast.Constant)}


def pieces_of(quoted: str) -> list[str]:
    return [piece.strip() for piece in quoted.split("…") if piece.strip(" .,:(=")]


def says(text: str, quoted: str) -> bool:
    """Whether the pieces of a quoted message stand in a text, in their order."""
    at = 0
    for piece in pieces_of(quoted):
        at = text.find(piece, at)
        if at < 0:
            return False
    return True


@pytest.mark.parametrize("quoted", PARTS)
def test_a_quoted_message_is_in_the_code(quoted: str) -> None:
    assert pieces_of(quoted), "a row needs words to look for"
    assert any(says(text, quoted) for text in TEXTS), pieces_of(quoted)


def test_every_kind_of_error_that_a_launch_can_end_with_is_there() -> None:
    raised = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type)}
    for name in ("ConfigError", "BusyError", "SubmitError", "BootstrapError", "NodeLostError", "WorkloadError",
                 "SandboxError", "EngineError"):  # fmt: skip
        assert name in raised
        said = [text for text in messages_of(name) if any(says(text, part) for part in PARTS)]
        assert said, f"no message of {name} is explained"


def messages_of(name: str) -> list[str]:
    calls = [node for node in NODES if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.args]
    return [literal(call.args[0]) for call in calls if isinstance(call.func, ast.Name) and call.func.id == name]
