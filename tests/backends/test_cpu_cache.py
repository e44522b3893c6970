"""The cache of machine code on disk: found again, shared, bounded, and never trusted further than it deserves."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from accord.backends.cpu import cache as cache_module
from accord.backends.cpu import jit
from accord.backends.cpu.cache import DiskCache
from accord.backends.cpu.machine import machine
from accord.storage import cache_folder
from cpu_harness import Number

X86 = pytest.mark.skipif(machine().arch != "x86_64", reason="machine code can be linked for x86-64 only")


def key_of(k: int) -> bytes:
    return hashlib.sha256(str(k).encode()).digest()


def content_of(k: int) -> bytes:
    return random.Random(k).randbytes(200 + 37 * (k % 50))


def file_of(cache: DiskCache, key: bytes) -> Path:
    assert cache.folder is not None
    return cache.folder / key.hex()[:2] / key.hex()[2:]


@pytest.fixture
def cache(tmp_path) -> DiskCache:
    return DiskCache(tmp_path / "not" / "yet" / "there")


def test_what_is_put_is_got(cache: DiskCache):
    assert cache.get(key_of(1)) is None
    for k in range(30):
        cache.put(key_of(k), content_of(k))
    cache.put(key_of(31), b"")
    assert cache.folder is not None
    for c in (cache, DiskCache(cache.folder)):
        assert [c.get(key_of(k)) for k in range(30)] == [content_of(k) for k in range(30)]
        assert c.get(key_of(31)) == b""
        assert c.get(key_of(32)) is None
    assert not list(cache.folder.rglob(".*")), "no temporary file is left"


def test_the_folder_follows_the_xdg_rules(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ACCORD_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder() == tmp_path / ".cache" / "accord"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache_folder() == tmp_path / ".cache" / "accord"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache_folder() == tmp_path / "x" / "accord"
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "mine"))
    assert cache_folder() == tmp_path / "mine"
    monkeypatch.setenv("ACCORD_CACHE", "off")
    assert cache_folder() is None


# damage


def _flip(position: float):
    def damage(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[int(position * (len(data) - 1))] ^= 0x10
        path.write_bytes(data)

    return damage


def _cut(share: float):
    return lambda path: path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])


def _huge(path: Path) -> None:
    with path.open("r+b") as f:
        f.truncate(1 << 40)


def _other_key(path: Path) -> None:
    cache = DiskCache(path.parents[1])
    cache.put(key_of(78), content_of(78))
    file_of(cache, key_of(78)).rename(path)


def _replace(make):
    def damage(path: Path) -> None:
        path.unlink()
        make(path)

    return damage


def _linked(path: Path) -> None:
    path.rename(path.parent / "elsewhere")
    path.symlink_to(path.parent / "elsewhere")


DAMAGE = {
    **{f"flipped at {p}": _flip(p) for p in (0, 0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.6, 1)},
    **{f"cut at {p}": _cut(p) for p in (0, 0.01, 0.2, 0.5, 0.99)},
    "extended": lambda p: p.write_bytes(p.read_bytes() + b"\0"),
    "huge": _huge,
    "zeros": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "another's": _other_key,
    "a folder": _replace(Path.mkdir),
    "a pipe": _replace(os.mkfifo),
    "a link": _linked,
    "writable by all": lambda p: p.chmod(0o666),
    "writable by the group": lambda p: p.chmod(0o664),
}


@pytest.mark.parametrize("kind", DAMAGE)
def test_damaged_and_foreign_entries_are_ignored_and_replaced(cache: DiskCache, kind: str):
    cache.put(key_of(7), content_of(7))
    path = file_of(cache, key_of(7))
    assert cache.get(key_of(7)) == content_of(7)
    DAMAGE[kind](path)
    began = time.perf_counter()
    assert cache.get(key_of(7)) is None
    assert time.perf_counter() - began < 0.5
    cache.put(key_of(7), content_of(7))
    if kind != "a folder":  # that stays; the kernel is compiled each time
        assert cache.get(key_of(7)) == content_of(7)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_entries_of_other_users_are_ignored(cache: DiskCache):
    cache.put(key_of(7), content_of(7))
    os.chown(file_of(cache, key_of(7)), 4321, 4321)
    assert cache.get(key_of(7)) is None
    assert cache.folder is not None
    cache.put(key_of(8), content_of(8))
    os.chown(cache.folder, 4321, 4321)
    assert DiskCache(cache.folder).get(key_of(8)) is None


@pytest.mark.parametrize("mode", [0o777, 0o775, 0o1777])
def test_a_folder_that_others_can_write_is_not_used(cache: DiskCache, mode: int):
    cache.put(key_of(7), content_of(7))
    assert cache.folder is not None
    cache.folder.chmod(mode)
    other = DiskCache(cache.folder)
    assert other.get(key_of(7)) is None
    other.put(key_of(9), content_of(9))
    assert not file_of(cache, key_of(9)).exists()


# disks that do not work


def test_no_folder_at_all():
    cache = DiskCache(None)
    cache.put(key_of(1), content_of(1))
    assert cache.get(key_of(1)) is None


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    cache = DiskCache(tmp_path / "file" / "cache")
    cache.put(key_of(1), content_of(1))
    assert cache.get(key_of(1)) is None


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES, errno.ENOSPC])
def test_a_folder_that_cannot_be_written_is_still_read(cache: DiskCache, monkeypatch, number: int):
    cache.put(key_of(1), content_of(1))
    assert cache.folder is not None
    real = os.open

    def refuse(path, flags, *rest):
        if flags & os.O_CREAT:
            raise OSError(number, os.strerror(number))
        return real(path, flags, *rest)

    def no_time(*_args):
        raise OSError(number, os.strerror(number))

    old = time.time() - 9999
    os.utime(file_of(cache, key_of(1)), (old, old))
    monkeypatch.setattr(os, "open", refuse)
    monkeypatch.setattr(os, "utime", no_time)
    other = DiskCache(cache.folder)
    other.put(key_of(2), content_of(2))
    assert other.get(key_of(1)) == content_of(1)
    assert other.get(key_of(2)) is None


def test_a_disk_that_fills_up_while_writing(cache: DiskCache, monkeypatch):
    cache.put(key_of(1), content_of(1))

    def full(fd, data):
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "write", full)
    cache.put(key_of(2), content_of(2))
    monkeypatch.undo()
    assert cache.get(key_of(2)) is None
    assert cache.folder is not None
    assert not list(cache.folder.rglob(".*"))


# size


def keys_in_one_folder(count: int) -> list[bytes]:
    return [b"\x11" + key_of(k)[1:] for k in range(count)]


def test_the_least_recently_used_go_first(tmp_path):
    cache = DiskCache(tmp_path / "c", limit=256 * 10_000)
    keys = keys_in_one_folder(12)
    for k, key in enumerate(keys[:8]):
        cache.put(key, bytes(1000))
        os.utime(file_of(cache, key), (k * 10_000, k * 10_000))
    assert cache.get(keys[0]) is not None  # used again: it is the newest now
    cache.put(keys[8], bytes(1000))
    assert all(file_of(cache, k).exists() for k in keys[:9])
    cache.put(keys[9], bytes(1000))
    left = [k for k in range(10) if file_of(cache, keys[k]).exists()]
    assert left == [0, 5, 6, 7, 8, 9]
    folder = file_of(cache, keys[0]).parent
    assert sum(f.stat().st_size for f in folder.iterdir()) <= 10_000


def test_entries_that_are_too_large_are_not_stored(tmp_path):
    cache = DiskCache(tmp_path / "c", limit=256 * 1000)
    cache.put(key_of(1), bytes(2000))
    assert cache.get(key_of(1)) is None
    assert not (tmp_path / "c").exists()


def test_what_killed_writers_left_is_removed(cache: DiskCache):
    keys = keys_in_one_folder(2)
    cache.put(keys[0], b"x")
    folder = file_of(cache, keys[0]).parent
    old, new = folder / ".left", folder / ".being-written"
    for f in (old, new):
        f.write_bytes(bytes(100))
    os.utime(old, (0, 0))
    cache.put(keys[1], b"y")
    assert not old.exists()
    assert new.exists()


# processes

WORKER = """
import hashlib, importlib.util, random, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("cache", {module!r})  # alone: a quick start
module = sys.modules["cache"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
cache = module.DiskCache(Path({folder!r}), limit={limit})
rng = random.Random({seed})
print("go", flush=True)
wrong = 0
for step in range({steps}):
    k = rng.randrange(60)
    key = hashlib.sha256(str(k).encode()).digest()
    content = random.Random(k).randbytes(200 + 37 * (k % 50))
    found = cache.get(key)
    wrong += found not in (None, content)
    if found is None or rng.random() < 0.3:
        cache.put(key, content)
print("wrong", wrong)
"""


def start(folder: Path, seed: int, steps: int, limit: int = 512 << 20) -> subprocess.Popen[str]:
    code = WORKER.format(module=cache_module.__file__, folder=str(folder), limit=limit, seed=seed, steps=steps)
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)


def test_processes_share_it(tmp_path):
    workers = [start(tmp_path / "c", seed, 1500, limit=256 * 5000) for seed in range(4)]
    for w in workers:
        assert w.communicate(timeout=60)[0] == "go\nwrong 0\n"
    cache = DiskCache(tmp_path / "c")
    found = [cache.get(key_of(k)) for k in range(60)]
    assert sum(f is not None for f in found) > 30
    assert all(f in (None, content_of(k)) for k, f in enumerate(found))


def test_killed_writers_leave_nothing_wrong(tmp_path):
    rng = random.Random(4)
    for seed in range(8):
        worker = start(tmp_path / "c", seed, 10**9)
        assert worker.stdout is not None
        worker.stdout.readline()
        time.sleep(rng.random() * 0.05)
        worker.send_signal(signal.SIGKILL)
        worker.wait()
        worker.stdout.close()
        cache = DiskCache(tmp_path / "c")
        found = [cache.get(key_of(k)) for k in range(60)]
        assert all(f in (None, content_of(k)) for k, f in enumerate(found))
    assert any(f is not None for f in found)


# machine code


@contextlib.contextmanager
def cached_in(folder: Path, monkeypatch):
    """Machine code is looked for in ``folder`` only, as in a new process."""
    with monkeypatch.context() as m:
        m.setattr(jit, "_cache", lambda: DiskCache(folder))
        m.setattr(jit, "_changed_since", lambda _moment: False)
        m.setattr(jit, "_STATE", jit._State())
        yield


@X86
def test_two_hundred_kernels_load_quickly(tmp_path, monkeypatch):
    with cached_in(tmp_path / "c", monkeypatch):
        jit.load([Number(k) for k in range(200)])
    with cached_in(tmp_path / "c", monkeypatch):
        monkeypatch.setattr(jit, "_compile", lambda *_: pytest.fail("compiled again"))
        codes = [Number(k) for k in range(200)]
        began = time.perf_counter()
        jit.load(codes)
        assert time.perf_counter() - began < 0.2
        assert [c.run() for c in codes] == list(range(200))


@X86
@pytest.mark.parametrize("kind", ["flipped at 0.6", "cut at 0.5", "huge", "zeros"])
def test_a_damaged_kernel_is_compiled_again(tmp_path, monkeypatch, kind: str):
    with cached_in(tmp_path / "c", monkeypatch):
        jit.load([Number(k) for k in range(3)])
    for path in (tmp_path / "c").rglob("*"):
        if path.is_file():
            DAMAGE[kind](path)
    with cached_in(tmp_path / "c", monkeypatch):
        assert [Number(k).run() for k in range(3)] == [0, 1, 2]
    with cached_in(tmp_path / "c", monkeypatch):
        monkeypatch.setattr(jit, "_compile", lambda *_: pytest.fail("compiled again"))
        assert [Number(k).run() for k in range(3)] == [0, 1, 2]


@X86
def test_other_generators_and_other_machines_have_other_entries(tmp_path, monkeypatch):
    code = Number(5)
    before = jit._key(code.symbol, code)
    with monkeypatch.context() as m:
        m.setattr(jit, "_version", lambda: "another")
        assert jit._key(code.symbol, code) != before
    with monkeypatch.context() as m:
        lesser = jit.machine().__class__("x86_64", "x86-64", frozenset(), frozenset(), 128, 1, 2, 3, 4)
        m.setattr(jit, "machine", lambda: lesser)
        assert jit._key(code.symbol, code) != before
    assert jit._key(code.symbol, code) == before


@X86
def test_nothing_is_stored_when_a_generator_changed_after_the_start(tmp_path, monkeypatch):
    changed_since = jit._changed_since
    with cached_in(tmp_path / "c", monkeypatch):
        monkeypatch.setattr(jit, "_changed_since", lambda _moment: True)
        assert Number(6).run() == 6
    assert not (tmp_path / "c").exists()
    assert jit._started() <= time.time()
    assert time.time() - jit._started() < 24 * 3600
    assert jit._generator_files()
    assert changed_since(0.0)
    assert not changed_since(time.time())


COLD_AND_WARM = """
import sys
sys.path.insert(0, {tests!r})
import numpy as np
import accord
from builders import model, node

nodes = [node("MatMul", ["x", "x"], ["t"]), node("Relu", ["t"], ["y"])]
m = accord.load(model(nodes, {{"x": ("float32", ["n", "n"])}}, ["y"]), threads=2)
for n in (3, 40, 200):
    m(np.ones((n, n), np.float32))
print("llvmlite" in sys.modules)
"""


@X86
def test_a_process_that_finds_all_kernels_never_loads_llvm(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path / "c"))
    code = COLD_AND_WARM.format(tests=str(Path(__file__).parents[1]))

    def run() -> str:
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout

    assert [run(), run()] == ["True\n", "False\n"]
    monkeypatch.setenv("ACCORD_CACHE", "off")
    assert run() == "True\n"
