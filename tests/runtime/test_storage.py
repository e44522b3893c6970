"""What is kept on disk: hashes, checksums, damaged entries, writers that are killed."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import accord
from accord import storage
from accord.cores import on_all_cores
from accord.storage import Storage, checksum_of, digest_of, digest_of_file

PIECE = storage._PIECE
SIZES = [0, 1, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5]


def content_of(size):
    return np.random.default_rng(size).integers(0, 256, size, np.uint8)


@pytest.mark.parametrize("size", SIZES)
def test_a_file_has_the_hash_of_its_content(size, tmp_path):
    content = content_of(size)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    with path.open("rb") as file:
        assert digest_of_file(file.fileno()) == digest_of(content.data)


def test_a_file_is_hashed_in_reads_smaller_than_a_piece(tmp_path, monkeypatch):
    content = content_of(PIECE + 77)
    path = tmp_path / "file"
    path.write_bytes(content.tobytes())
    monkeypatch.setattr(storage, "_READ", 1000)
    with path.open("rb") as file:
        assert digest_of_file(file.fileno()) == digest_of(content.data)


@pytest.mark.parametrize("function", [digest_of, checksum_of])
def test_a_hash_tells_every_length_and_every_piece(function):
    content = content_of(3 * PIECE + 5)
    seen = {function(content[:size].data) for size in SIZES}
    assert len(seen) == len(SIZES)
    for place in (0, PIECE - 1, PIECE, 3 * PIECE - 1, len(content) - 1):
        changed = content.copy()
        changed[place] ^= 1
        seen.add(function(changed.data))
    order = np.concatenate([content[PIECE : 2 * PIECE], content[:PIECE], content[2 * PIECE :]])
    seen.add(function(order.data))
    assert len(seen) == len(SIZES) + 6
    assert all(len(s) == 32 for s in seen)
    assert function(content.data) in seen


def test_damaged_entries_are_as_if_they_were_not_there(tmp_path):
    kept = Storage("things", tmp_path)
    content = content_of(2 * PIECE + 9).tobytes()
    assert kept.write("k", [content[:100], memoryview(content)[100:]])
    assert bytes(kept.read("k")) == content
    (path,) = (tmp_path / "things").iterdir()
    whole = path.read_bytes()
    for place in (0, 8, 20, 64, 64 + PIECE, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 128]) + whole[place + 1 :])
        assert kept.read("k") is None, place
    for length in (0, 10, 64, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert kept.read("k") is None, length
    path.write_bytes(whole)
    assert bytes(kept.read("k")) == content
    path.chmod(0o666)
    assert kept.read("k") is None, "others may have written it"


@pytest.mark.parametrize("count", [0, 1, 2, 50])
def test_shared_work_is_done_once_each(count):
    done = []
    on_all_cores(done.append, count)
    assert sorted(done) == list(range(count))


def test_shared_work_that_fails_raises_where_it_was_asked_for():
    def work(k):
        if k == 3:
            raise KeyError(k)

    with pytest.raises(KeyError, match="3"):
        on_all_cores(work, 8)
    assert not any(t.name.endswith("(serve)") for t in threading.enumerate())


#: Loads a model whose plan is written by another thread, and dies as that thread has written so many parts.
_KILLED = """
import os, signal, sys
import accord
from accord import storage
from accord.runtime import model

model._WRITTEN_LATER = 0
path, most = sys.argv[1], int(sys.argv[2])
write = storage.Storage.write

def parts_of(parts):
    for k, part in enumerate(parts):
        if k == most:
            os.kill(os.getpid(), signal.SIGKILL)
        yield part
    if most < 0:
        os.kill(os.getpid(), signal.SIGKILL)

storage.Storage.write = lambda self, key, parts: write(self, key, parts_of(parts))
accord.load(path)
"""


@pytest.mark.parametrize("parts", [0, 1, 4, -1])
def test_a_writer_that_is_killed_leaves_no_entry(parts, tmp_path, monkeypatch):
    weight = np.random.default_rng(1).standard_normal((40, 48)).astype(np.float32)
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 40])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", inputs, outputs, [numpy_helper.from_array(weight, "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    path = tmp_path / "model.onnx"
    path.write_bytes(made.SerializeToString())
    cache = tmp_path / "cache"
    environment = {**os.environ, "ACCORD_CACHE": str(cache)}
    command = [sys.executable, "-c", _KILLED, str(path), str(parts)]
    died = subprocess.run(command, env=environment, timeout=120, check=False)
    assert died.returncode == -signal.SIGKILL
    left = list((cache / "plans").iterdir())
    assert left and not any(p.suffix == ".entry" for p in left)

    monkeypatch.setenv("ACCORD_CACHE", str(cache))
    x = np.random.default_rng(2).standard_normal((3, 40)).astype(np.float32)
    for stages in (False, True):
        found = accord.load(path)
        assert (list(found.seconds) == ["stored"]) is stages
        np.testing.assert_allclose(found(x)[0], x @ weight, rtol=1e-5, atol=1e-5)
