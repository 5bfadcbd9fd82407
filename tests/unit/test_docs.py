"""The documentation: its links lead somewhere, its commands are ones that hpcjet knows."""

import re
import shlex
from pathlib import Path

import pytest

from hpcjet.cli import parser
from hpcjet.config.compose import compose
from hpcjet.launch import apart, help_page

ROOT = Path(__file__).parents[2]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path, _, anchor = target.partition("#")
        if re.match(r"[a-z]+:", target):
            continue
        file = (page.parent / path).resolve() if path else page
        assert file.exists() and file.is_relative_to(ROOT), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"(?m)^#+ (.+)$", file.read_text())
            assert anchor in [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings], target


def commands(page: Path, name: str) -> list[list[str]]:
    """The words after `name` of each such line of code."""
    text = page.read_text().replace("\\\n", " ")
    fenced = "\n".join(re.findall(r"(?ms)^```(?:bash|sh|console)?\n(.*?)^```$", text))
    indented = "\n".join(re.findall(r"(?m)^ {4,}(.+)$", text))
    lines = [line.strip().removeprefix("$ ") for line in f"{fenced}\n{indented}".splitlines()]
    known = [shlex.split(line.removeprefix(name), comments=True) for line in lines if line.startswith(f"{name} ")]
    return [words for words in known if "..." not in words and not any(word.startswith("[") for word in words)]


def test_commands_are_found() -> None:
    assert len([words for page in PAGES for words in commands(page, "python -m hpcjet.launch")]) >= 5
    assert len([words for page in PAGES for words in commands(page, "hpcjet")]) >= 10


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_launches_compose(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)
    for words in commands(page, "python -m hpcjet.launch"):
        if words[0] == "--help":
            assert help_page(words[1:])
        else:
            own, program = apart(words)
            compose([word for word in [*own, *program] if word != "--cfg"])


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page, "hpcjet"):
        try:
            parser().parse_args(words)
        except SystemExit as ended:
            assert not ended.code, f"{page.name}: hpcjet {shlex.join(words)}: {capsys.readouterr().err}"
