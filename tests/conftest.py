"""Makes the helper modules beside the tests importable, and keeps tests from the user's cache."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
# what an earlier version stored must not hide what this one does
os.environ["ACCORD_CACHE"] = "off"
