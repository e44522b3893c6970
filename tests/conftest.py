"""Makes the helper modules beside the tests importable, and keeps tests from the user's cache."""

import os
import sys
import tempfile
from pathlib import Path

import pytest

os.environ.setdefault("ACCORD_CACHE", str(Path(tempfile.gettempdir()) / f"accord-tests-{os.getuid()}"))
os.environ.setdefault("ACCORD_TUNING", "off")  # a model that runs once is not worth it
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "cli")]


@pytest.fixture
def far(monkeypatch):
    """Device "far", whose memory the host cannot read."""
    from accord.backends import discovery
    from far_device import FarBackend

    backend = FarBackend()
    known = {**discovery.available_backends(), "far": backend}
    monkeypatch.setattr(discovery, "available_backends", lambda: known)
    monkeypatch.setenv("ACCORD_CACHE", "off")
    return backend
