"""Makes the helper modules beside the tests importable, and keeps tests from the user's cache."""

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("ACCORD_CACHE", str(Path(tempfile.gettempdir()) / f"accord-tests-{os.getuid()}"))
sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent / "cli")]
