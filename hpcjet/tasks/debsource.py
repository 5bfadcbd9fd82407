"""Fetching a Debian source package as an ordinary user: apt with private lists, made from the machine's own sources."""

import functools
import hashlib
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcjet.atomic import replacing
from hpcjet.errors import TaskError

log = logging.getLogger(__name__)

ETC_APT = Path("/etc/apt")
APT_TIMEOUT_S = 900.0
_POCKET = re.compile(r"[a-z]+([-/](updates|security|proposed-updates|proposed|backports|backports-sloppy))?")
_CODENAMES = {"stable", "oldstable", "oldoldstable", "testing", "unstable", "sid"}
_PACKAGE = re.compile(r"[a-z0-9][a-z0-9.+-]+")


@dataclass(frozen=True)
class SourcePackage:
    """A fetched source package."""

    name: str
    version: str
    dsc: Path


def fetch_source(package: str, *, kept: Path, work: Path, sources: str | None = None) -> SourcePackage:
    """The newest version of a source package that can be fetched, from `kept` if it is there already.

    `work` is an empty folder for apt's lists; `sources` are deb822 stanzas in place of the machine's own.
    Raises TaskError with what apt said if nothing can be had.
    """
    if not _PACKAGE.fullmatch(package):
        raise TaskError(f"{package!r} is not the name of a Debian source package; give one such as python3.11")
    _need_programs()
    apt = _Apt(work, source_stanzas(ETC_APT, codename=_codename()) if sources is None else sources)
    said = []
    for version in apt.versions(package):
        try:
            return _fetch(apt, package, version, kept, work / "downloads")
        except _AptError as error:
            log.info("%s %s cannot be fetched, trying the next one", package, version)
            said.append(f"{version}: {error}")
    if found := _newest_kept(package, kept):
        return found
    raise TaskError(f"no version of {package} can be fetched: {'; '.join([*said, apt.complaint]) or 'none is listed'}")


class _AptError(Exception):
    pass


class _Apt:
    """apt with lists, caches and sources of its own, so that neither root nor a changed system is needed."""

    def __init__(self, work: Path, sources: str) -> None:
        if not sources.strip():
            raise TaskError(f"{ETC_APT} lists no Debian or Ubuntu archive; run this on a machine that has one")
        for folder in ("lists/partial", "cache/archives/partial", "downloads"):
            (work / folder).mkdir(parents=True)
        (work / "hpcjet.sources").write_text(sources, "utf-8")
        (work / "apt.conf").write_text(render_apt_conf(work), "utf-8")
        self._work = work
        self.complaint = ""

    def versions(self, package: str) -> list[str]:
        """Versions in the lists, newest first."""
        try:
            self.run("apt-get", "-q", "update")
        except _AptError as error:  # one archive may be away while another one answers
            self.complaint = str(error)
        try:
            listed = self.run("apt-cache", "showsrc", package)
        except _AptError as error:
            self.complaint = f"{self.complaint} {error}".strip()
            return []
        found = {stanza.get("Version", "") for stanza in stanzas(listed) if stanza.get("Package") == package}
        return sorted(found - {""}, key=functools.cmp_to_key(_compare_versions), reverse=True)

    def run(self, program: str, *arguments: str, cwd: Path | None = None) -> str:
        command = [program, "-c", str(self._work / "apt.conf"), *arguments]
        env = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
        try:
            done = subprocess.run(
                command, cwd=cwd, env=env, capture_output=True, timeout=APT_TIMEOUT_S, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise _AptError(f"{program} {arguments[0]} took more than {APT_TIMEOUT_S:.0f} s") from None
        if done.returncode:
            raise _AptError(_errors_of(done.stderr.decode("utf-8", "replace")) or f"{program} gave {done.returncode}")
        return done.stdout.decode("utf-8", "replace")


def render_apt_conf(work: Path) -> str:
    """The private configuration; apt reads it after the machine's own, so proxies and mirrors stay."""
    settings = {
        "Dir::Etc::sourcelist": work / "hpcjet.sources",
        "Dir::Etc::sourceparts": "/dev/null",
        "Dir::State::lists": work / "lists",
        "Dir::Cache": work / "cache",
        "Acquire::Languages": "none",
        # as root apt would change to a user who cannot enter these folders
        "APT::Sandbox::User": "",
    }
    hooks = ("APT::Update::Pre-Invoke", "APT::Update::Post-Invoke", "APT::Update::Post-Invoke-Success")
    lines = [f'{name} "{value}";' for name, value in settings.items()]
    # the machine's hooks are for its own lists and may need root
    return "\n".join([*lines, *(f"#clear {hook};" for hook in hooks)]) + "\n"


def source_stanzas(etc: Path, *, codename: str) -> str:
    """deb-src stanzas for the distribution's own archives that the files of /etc/apt name, in deb822 format."""
    lists = [etc / "sources.list", *sorted((etc / "sources.list.d").glob("*.list"))]
    found = [stanza for path in lists if path.is_file() for stanza in _one_line_stanzas(path.read_text("utf-8"))]
    for path in sorted((etc / "sources.list.d").glob("*.sources")):
        found += stanzas(path.read_text("utf-8"))
    rendered = [_render_source(stanza, codename) for stanza in found]
    return "\n".join(dict.fromkeys(text for text in rendered if text))


def _one_line_stanzas(text: str) -> list[dict[str, str]]:
    pattern = re.compile(r"^\s*deb(?:-src)?\s+(?:\[([^\]]*)\]\s+)?(\S+)\s+(\S+)\s+([^#\n]+)", re.MULTILINE)
    names = {"signed-by": "Signed-By", "trusted": "Trusted", "check-valid-until": "Check-Valid-Until"}
    result = []
    for match in pattern.finditer(text):
        stanza = {"Types": "deb", "URIs": match[2], "Suites": match[3], "Components": match[4].strip()}
        for option in (match[1] or "").split():
            name, _, value = option.partition("=")
            if name.lower() in names:
                stanza[names[name.lower()]] = value.replace(",", " ")
        result.append(stanza)
    return result


def _render_source(stanza: dict[str, str], codename: str) -> str:
    suites = [suite for suite in stanza.get("Suites", "").split() if _is_distribution(suite, codename)]
    ours = "main" in stanza.get("Components", "").split() and suites
    if not ours or stanza.get("Enabled", "yes").lower() in ("no", "false") or not stanza.get("Types"):
        return ""
    kept = {name: value for name, value in stanza.items() if name not in ("Types", "Suites", "Architectures")}
    return "".join(
        f"{name}: {value}\n" for name, value in {"Types": "deb-src", "Suites": " ".join(suites), **kept}.items()
    )


def _is_distribution(suite: str, codename: str) -> bool:
    return bool(_POCKET.fullmatch(suite)) and re.split("[-/]", suite)[0] in {codename, *_CODENAMES}


def stanzas(text: str) -> list[dict[str, str]]:
    """The paragraphs of a deb822 file. Continuation lines keep their line breaks."""
    result: list[dict[str, str]] = [{}]
    name = ""
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.strip():
            result.append({})
        elif line[0] in " \t":
            if name in result[-1]:
                result[-1][name] += f"\n{line}"
        elif ":" in line:
            name, value = line.split(":", 1)
            result[-1][name] = value.strip()
    return [stanza for stanza in result if stanza]


def _fetch(apt: _Apt, package: str, version: str, kept: Path, downloads: Path) -> SourcePackage:
    dsc = kept / dsc_name(package, version)
    if not is_complete(dsc):
        log.info("fetching %s %s", package, version)
        apt.run("apt-get", "-q", "source", "--download-only", f"{package}={version}", cwd=downloads)
        fetched = downloads / dsc.name
        if not is_complete(fetched):
            raise _AptError(f"{fetched.name} or a file that it names did not arrive")
        _keep([*(path for path, _ in files_of(fetched)), fetched], kept)
    return SourcePackage(package, version, dsc)


def _keep(paths: Iterable[Path], kept: Path) -> None:
    """Move downloads where they stay; each appears whole, and another builder's equal one may be replaced."""
    kept.mkdir(parents=True, exist_ok=True)
    for path in paths:
        with (
            replacing(kept / path.name, mode=0o644) as descriptor,
            os.fdopen(descriptor, "wb", closefd=False) as target,
            path.open("rb") as source,
        ):
            shutil.copyfileobj(source, target)


def dsc_name(package: str, version: str) -> str:
    """The epoch of a version is no part of file names."""
    return f"{package}_{version.split(':', 1)[-1]}.dsc"


def is_complete(dsc: Path) -> bool:
    """Whether a .dsc and all that it names are there, with the right checksums."""
    return dsc.is_file() and all(path.is_file() and _sha256(path) == digest for path, digest in files_of(dsc))


def files_of(dsc: Path) -> list[tuple[Path, str]]:
    """The files of a source package with their SHA-256."""
    for stanza in stanzas(dsc.read_text("utf-8", "replace")):
        if "Checksums-Sha256" in stanza:
            rows = [line.split() for line in stanza["Checksums-Sha256"].splitlines() if line.strip()]
            return [(dsc.parent / Path(name).name, digest) for digest, _, name in rows]
    raise TaskError(f"{dsc} names no files with SHA-256 checksums; remove it and try again")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _newest_kept(package: str, kept: Path) -> SourcePackage | None:
    pattern = re.compile(rf"{re.escape(package)}_(.+)\.dsc")
    versions = [match[1] for path in kept.glob("*.dsc") if (match := pattern.fullmatch(path.name))]
    for version in sorted(versions, key=functools.cmp_to_key(_compare_versions), reverse=True):
        if is_complete(kept / dsc_name(package, version)):
            return SourcePackage(package, version, kept / dsc_name(package, version))
    return None


def unpack_source(source: SourcePackage, target: Path) -> None:
    """Unpack a source package without applying its patches. Raises TaskError."""
    command = ["dpkg-source", "--no-check", "--skip-patches", "--extract", str(source.dsc), str(target)]
    done = _run(command)
    if done.returncode:
        raise TaskError(f"{' '.join(command)} ended with {done.returncode}: {done.stderr.decode('utf-8', 'replace')}")


def _compare_versions(left: str, right: str) -> int:
    if left == right:
        return 0
    return -1 if _run(["dpkg", "--compare-versions", left, "lt", right]).returncode == 0 else 1


def _run(command: Sequence[str]) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL)


def _need_programs() -> None:
    for program, package in (("apt-get", "apt"), ("dpkg-source", "dpkg-dev"), ("patch", "patch")):
        if shutil.which(program) is None:
            raise TaskError(
                f"{program} is missing: `apt-get install {package}` brings it on Debian and Ubuntu. On another system, "
                "make the task set on a Debian machine and copy its folder, or give exp.tasks and exp.repos your own"
            )


def _codename() -> str:
    text = Path("/etc/os-release").read_text("utf-8") if Path("/etc/os-release").is_file() else ""
    match = re.search(r"^VERSION_CODENAME=\"?([a-z]+)", text, re.MULTILINE)
    return match[1] if match else "stable"


def _errors_of(stderr: str) -> str:
    """apt's error lines without its warnings and without the user and password of a mirror."""
    lines = [line for line in stderr.splitlines() if line.startswith(("E:", "Err:"))][:4]
    return re.sub(r"//[^/@\s]*@", "//", " ".join(lines))
