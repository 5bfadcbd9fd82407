import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "nfs: needs a User Mode Linux guest with an NFS server (see guest.sh)")
