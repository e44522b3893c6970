"""Operators of ``com.microsoft`` on arrays. Importing this package registers them.

Most are compositions: :mod:`.composition` evaluates their expansion. The others are written out.
"""

from __future__ import annotations

from accord.backends.reference.microsoft import composition as composition
from accord.backends.reference.microsoft import matrices as matrices
from accord.backends.reference.microsoft import text as text
from accord.backends.reference.microsoft import tokens as tokens
