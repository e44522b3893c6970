"""What a device keeps, with a driver that only counts; no GPU is needed."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from types import SimpleNamespace
from weakref import WeakMethod, WeakValueDictionary

import pytest

from accord.backends.cuda import driver
from accord.backends.cuda.driver import Device, Graph
from accord.backends.cuda.loss import Losable


@pytest.fixture
def gpu(monkeypatch):
    """A device without its constructor; ``done`` lists what was asked of the driver."""
    device = Device.__new__(Device)
    Losable.__init__(device, 0)
    device._loading = threading.Lock()
    device._functions = WeakValueDictionary()
    device._graphs = []
    device._driver = SimpleNamespace(
        CUfunction_attribute=SimpleNamespace(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=8)
    )
    device.done = []

    def call(name, *given):
        device.done.append((name, given[0]))
        return len(device.done)

    device.call = device.release = call
    device.enter = lambda: None
    monkeypatch.setattr(driver, "_GRAPH_KERNELS", 100)
    return device


class Owner:
    def __init__(self):
        self.graphs = {}

    def drop(self, key):
        self.graphs.pop(key, None)


def captured(gpu, owner, key, kernels, used):
    graph = owner.graphs[key] = Graph(gpu, key, [None] * kernels)
    graph.used = used
    gpu.keep(graph, WeakMethod(owner.drop), key)


def test_graphs_used_longest_ago_go_where_there_are_too_many(gpu):
    owner, other = Owner(), Owner()
    captured(gpu, owner, b"a", 40, 3.0)
    captured(gpu, other, b"b", 40, 1.0)
    captured(gpu, owner, b"c", 20, 2.0)
    assert not gpu.done
    captured(gpu, other, b"d", 50, 4.0)
    assert list(owner.graphs) == [b"a"] and list(other.graphs) == [b"d"]
    assert gpu.done == [("cuGraphExecDestroy", b"b"), ("cuGraphExecDestroy", b"c")]
    del owner  # whatever else ends a graph makes room too
    gc.collect()
    captured(gpu, other, b"e", 50, 5.0)
    assert list(other.graphs) == [b"d", b"e"]


def test_a_graph_that_is_too_large_is_kept_alone(gpu):
    owner = Owner()
    captured(gpu, owner, b"a", 40, 1.0)
    captured(gpu, owner, b"b", 400, 2.0)
    assert list(owner.graphs) == [b"b"]


def test_kernels_are_unloaded_with_their_last_user(gpu):
    first, second = (gpu.function(b"cubin", "name", (128, 1, 1), 0) for _ in range(2))
    assert first is second
    assert [name for name, _ in gpu.done].count("cuLibraryLoadData") == 1
    graph = Graph(gpu, b"g", [SimpleNamespace(function=first)])
    del first, second
    assert "cuLibraryUnload" not in dict(gpu.done)
    gpu.done.clear()
    del graph
    assert [name for name, _ in gpu.done] == ["cuGraphExecDestroy", "cuLibraryUnload"]
    gpu.function(b"cubin", "name", (128, 1, 1), 0)
    assert gpu.done[-1][0] == "cuLibraryUnload"


def test_what_stored_kernels_need_reads_no_models_and_writes_no_kernels():
    """A start with a stored plan has no time for it."""
    names = ("tile_choice", "attention_choice", "loop_choice", "program", "packing")
    heavy = ("onnx", "onnx_ir", "sympy", "triton", "accord.backends.cuda.loop_writer")
    code = f"import sys, importlib\nfor n in {names}: importlib.import_module(f'accord.backends.cuda.{{n}}')\n"
    code += f"print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found == "[]\n"
