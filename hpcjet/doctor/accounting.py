"""Slurm's accounting: whether the end of a job can be found out later, and whose account pays."""

import os

from hpcjet.doctor.asked import ask
from hpcjet.doctor.line import Facts, Line, ok, warn

SUBJECT = "accounting"


def look(settings: dict[str, str]) -> Facts:
    kind = settings.get("AccountingStorageType", "")
    complaint = ""
    if not kind.endswith("none"):
        _, complaint = ask("sacct", "-n", "-X", "-P", "-S", "now-10minutes", "-o", "JobID,State")
    enforced = settings.get("AccountingStorageEnforce", "")
    return {"kind": kind, "complaint": complaint, "enforced": enforced, "accounts": _accounts()}


def assess(facts: Facts, *, account: str | None) -> list[Line]:
    lines = []
    later = "hpcjet then goes by squeue and by its own state file; a job that Slurm has forgotten stays unknown"
    if facts["kind"].endswith("none") or "disabled" in facts["complaint"]:
        lines.append(warn(SUBJECT, "off: sacct knows nothing", later))
    elif facts["complaint"]:
        lines.append(warn(SUBJECT, f"sacct does not answer: {facts['complaint']}", f"{later}; ask the site (slurmdbd)"))
    else:
        lines.append(ok(SUBJECT, "on, and answers"))
    if accounts := facts["accounts"]:
        lines.append(_paying(accounts, account, "associations" in facts["enforced"]))
    return lines


def _paying(accounts: list[str], account: str | None, enforced: bool) -> Line:
    if account and account not in accounts and enforced:
        return warn("account", f"cluster.account={account} is not among yours", f"choose one of {', '.join(accounts)}")
    chosen = account or "your default"
    more = "" if len(accounts) == 1 else f" (cluster.account chooses among {', '.join(accounts[:6])})"
    return ok("account", f"{chosen}{more}" if more or account else accounts[0])


def _accounts() -> list[str]:
    """The accounts of this user, or none where Slurm does not say."""
    user = os.environ.get("USER") or os.environ.get("LOGNAME") or str(os.geteuid())
    answer, _ = ask("sacctmgr", "-n", "-P", "show", "associations", f"user={user}", "format=account")
    return list(dict.fromkeys(line.strip() for line in answer.splitlines() if line.strip()))
