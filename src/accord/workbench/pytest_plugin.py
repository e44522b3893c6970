"""A plug-in of pytest: the fixture ``accord_gate`` fails a test whose kernel became slower than its baseline.

::

    def test_gate(accord_gate):
        accord_gate("shop::Gate", load="ops.py", kernel="c", sizes={"...": 64, "D": 1024})

The baseline is named by ``--accord-baseline FILE``, or by ``accord_baseline`` in pytest's settings; without one the
test is skipped. ``--accord-update`` measures the kernel into it instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pytest

__all__ = ["Check", "accord_gate", "pytest_addoption"]

#: ``check(operator, load=..., kernel=..., sizes=..., attributes=..., dtype=..., threads=...)``.
Check: TypeAlias = Callable[..., "dict[str, Any]"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options and the setting."""
    group = parser.getgroup("accord")
    group.addoption("--accord-baseline", metavar="FILE", help="Baseline for the fixture accord_gate.")
    group.addoption("--accord-update", action="store_true", help="Measure kernels into the baseline.")
    parser.addini("accord_baseline", "Baseline for the fixture accord_gate, from the root.", default="")


@pytest.fixture
def accord_gate(request: pytest.FixtureRequest) -> Check:
    """Compares one kernel with the baseline; the test fails where ``accord gate`` would."""
    config = request.config
    given = config.getoption("--accord-baseline")
    setting = config.getini("accord_baseline")
    if not given and not setting:
        pytest.skip("no baseline: --accord-baseline FILE, or accord_baseline in the settings of pytest")
    path = Path(given) if given else config.rootpath / setting
    update = bool(config.getoption("--accord-update"))
    here = request.path.parent

    def check(
        op: str,
        *,
        load: str | Sequence[str] = (),
        kernel: str,
        sizes: Mapping[str, int | Sequence[int]] | None = None,
        attributes: Mapping[str, Any] | None = None,
        dtype: str | None = None,
        threads: int = 1,
    ) -> dict[str, Any]:
        """Fail the test if the kernel lost; see :func:`accord.workbench.gate.compare` for what is returned."""
        from accord.errors import AccordError
        from accord.workbench import gate
        from accord.workbench.baseline import key_of
        from accord.workbench.measure import Wanted

        files = (load,) if isinstance(load, str) else tuple(load)
        wanted = Wanted(
            op,
            tuple(str(here / f) for f in files),
            {n: (v,) if isinstance(v, int) else tuple(v) for n, v in (sizes or {}).items()},
            dict(attributes or {}),
            dtype,
            0,
            threads,
        )
        try:
            if update:
                return gate.save(path, [(wanted, kernel)])
            report = gate.gate(path, wanted.load, keys=[key_of(wanted, kernel)])
        except AccordError as error:
            pytest.fail(str(error), pytrace=False)
        result: dict[str, Any] = report["benchmarks"][0]
        if report["verdict"] == "fail":
            pytest.fail(f"{result['benchmark']}: {gate.sentence(result)}", pytrace=False)
        return result

    return check
