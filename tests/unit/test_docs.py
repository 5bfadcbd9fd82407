"""The documentation: its links lead somewhere, its commands are ones that hpcjet knows."""

import re
import shlex
from pathlib import Path

import pytest

from hpcjet.cli import parser
from hpcjet.config.cluster import SlurmConfig
from hpcjet.config.compose import compose
from hpcjet.launch import apart, help_page
from hpcjet.sweep.axes import read_request
from hpcjet.sweep.patching import configs

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


CONF = "~/.config/hpcjet/conf/"


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of config files, in place of ~/.config/hpcjet/conf; no cluster is the default."""
    monkeypatch.delenv("HPCJET_CLUSTER", raising=False)
    monkeypatch.setenv("HPCJET_CONF", str(tmp_path))
    return tmp_path


def write_config_files(page: Path, conf: Path) -> list[Path]:
    """The config files that a page's code writes with cat, made in `conf`."""
    made = []
    for name, text in re.findall(rf"(?ms)^cat > {re.escape(CONF)}(\S+) <<'EOF'$\n(.*?)^EOF$", page.read_text()):
        file = conf / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        made.append(file)
    return made


def test_your_cluster_writes_files_that_can_be_chosen(conf: Path) -> None:
    page = ROOT / "docs" / "your-cluster.md"
    made = write_config_files(page, conf)
    assert [str(file.relative_to(conf)) for file in made] == [
        "cluster/my-leonardo.yaml", "cluster/mycluster.yaml", "exp/nightly.yaml"
    ]  # fmt: skip
    for file in made:
        words = ["+exp=noop", f"cluster={file.stem}"] if file.parent.name == "cluster" else [f"exp={file.stem}"]
        assert isinstance(compose(words).cluster, SlurmConfig)
    (more,) = re.findall(r"(?ms)^```yaml\n(.*?)^```$", page.read_text())
    (conf / "cluster" / "more.yaml").write_text(f"defaults: [slurm]\n{more}")
    cluster = compose(["+exp=noop", "cluster=more"]).cluster
    assert isinstance(cluster, SlurmConfig) and cluster.sbatch == {"reservation": "maint"}


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_launches_compose(page: Path, conf: Path) -> None:
    write_config_files(page, conf)
    for words in commands(page, "python -m hpcjet.launch"):
        if words[0] == "--help":
            assert help_page(words[1:])
        else:
            several = "-m" in words[: words.index("--") if "--" in words else None]
            own, program = apart([word for word in words if word != "-m"] if several else words)
            if "hydra/sweeper=optuna" in own:
                continue  # its keys are those of a package that need not be here
            if several:
                assert len(list(configs(read_request([*own, *program])))) > 1
                continue
            compose([word for word in [*own, *program] if word != "--cfg"])


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_commands_parse(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in commands(page, "hpcjet"):
        try:
            parser().parse_args(words)
        except SystemExit as ended:
            assert not ended.code, f"{page.name}: hpcjet {shlex.join(words)}: {capsys.readouterr().err}"
