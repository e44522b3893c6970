"""A package of its own adds a backend through an entry point; a broken one is named."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

PLUGIN = """
from accord.backends.protocol import Backend, HostKernel
from accord.ir.reason import Reason

class Doubler(HostKernel):
    name = "doubler"
    def run(self, inputs):
        return [inputs[0] * 2]

class Toy(Backend):
    name, device, priority = "toy", "toy", 10
    def select(self, view):
        return Doubler() if view.node.op_type == "Relu" else Reason("only Relu")

backend = Toy()
"""

USE = """
import numpy as np, onnx
from onnx import helper as h
import accord
from accord.errors import UnsupportedError

def model(op):
    x, y = (h.make_tensor_value_info(n, 1, [2]) for n in "xy")
    return h.make_model(h.make_graph([h.make_node(op, ["x"], ["y"], name="it")], "g", [x], [y]),
                        opset_imports=[h.make_opsetid("", 24)], ir_version=10)

m = accord.load(model("Relu"), device="toy")
print(m(np.ones(2, np.float32))[0].tolist(), m.compiled.plan.steps[0].placement.backend)
try:
    accord.load(model("Exp"), device="toy")
except UnsupportedError as error:
    print(error)
"""


def run(folder: Path, plugin: str, code: str) -> subprocess.CompletedProcess[str]:
    (folder / "toy_backend.py").write_text(plugin)
    info = folder / "toy_backend-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-backend\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[accord.backends]\ntoy = toy_backend:backend\n")
    command = f"import sys; sys.path.insert(0, {str(folder)!r})\n{code}"
    return subprocess.run([sys.executable, "-c", command], capture_output=True, text=True, check=False)


def test_a_package_adds_a_backend(tmp_path):
    result = run(tmp_path, PLUGIN, USE)
    lines = result.stdout.splitlines()
    assert result.returncode == 0, result.stderr
    assert lines[0] == "[2.0, 2.0] toy"
    assert "node 'it' (Exp)" in lines[1] and "toy: only Relu" in lines[1]


def test_a_package_that_cannot_be_imported_is_named(tmp_path):
    code = (
        "from accord.backends.discovery import available_backends\nfrom accord.errors import BackendError\n"
        "try:\n    available_backends()\nexcept BackendError as e:\n    print(e)"
    )
    result = run(tmp_path, "import no_such_module", code)
    assert "backend 'toy' (toy_backend:backend) could not be loaded" in result.stdout
    assert "uninstall" in result.stdout
