"""Diagnosis: what is wrong with an environment, what an error of some runtime means, and which runtime suits a model.

>>> from accord.doctor import diagnose
>>> [d.id for d in diagnose("RuntimeError: CUDA error: out of memory")]
['cuda-oom']
"""

from __future__ import annotations

from accord.doctor.diagnosis import Diagnosis, Reading, diagnose, read_log

__all__ = ["Diagnosis", "Reading", "diagnose", "read_log"]
