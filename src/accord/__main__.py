"""``python -m accord`` is ``accord``."""

from __future__ import annotations

from accord.cli import main

main(prog_name="accord")
