"""Where hpcjet finds what it ships and keeps what it builds."""

import os
from pathlib import Path

PACKAGE = Path(__file__).parent


def conf_dir() -> Path:
    """The folder of Hydra config files, in a checkout or in an installed wheel."""
    return _shipped("conf")


def user_conf_dir() -> tuple[Path, bool]:
    """The folder of the user's own config files, and whether HPCJET_CONF names it; else it is hpcjet/conf in the
    user's config folder (XDG_CONFIG_HOME, ~/.config)."""
    if chosen := os.environ.get("HPCJET_CONF"):
        return Path(chosen).expanduser().absolute(), True
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config").absolute() / "hpcjet" / "conf", False


def templates_dir() -> Path:
    """The folder of sbatch templates, in a checkout or in an installed wheel."""
    return _shipped("slurm_templates")


def cache_dir() -> Path:
    """Where big builds and downloads are kept: HPCJET_CACHE, else the user's cache folder.

    For root it is /var/cache/hpcjet: sandboxes run as an unprivileged user, who cannot enter /root.
    """
    if chosen := os.environ.get("HPCJET_CACHE"):
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/cache/hpcjet")
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hpcjet"


def _shipped(name: str) -> Path:
    installed = PACKAGE / f"_{name}"
    return installed if installed.is_dir() else PACKAGE.parent / name
