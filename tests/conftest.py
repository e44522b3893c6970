"""Makes the helper modules beside the tests importable, and keeps tests from the user's cache."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("ACCORD_CACHE", str(Path(tempfile.gettempdir()) / f"accord-tests-{os.getuid()}"))
sys.path.insert(0, str(Path(__file__).parent / "cli"))
sys.path.insert(0, str(Path(__file__).parent))

import pytest


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
