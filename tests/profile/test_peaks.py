"""What the machine can do: the probes do what they say, figures are sane, and are kept."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from profile_harness import PEAKS

from accord.backends.cpu.build import build
from accord.backends.cpu.machine import describe
from accord.backends.cpu.program import CpuProgram
from accord.backends.protocol import Launch, Phase
from accord.profile import peaks as module
from accord.profile.peaks import Rate, bound, measure, peaks
from accord.profile.probes import CopyProbe, MultiplyProbe, ReadProbe, block_bytes, multiply_dtypes
from accord.storage import Storage


def run(code, params, operands, tasks, threads=1):
    table = np.array([a.ctypes.data for a in operands], np.int64)
    CpuProgram([(Phase(code, tuple(range(len(operands))), ()), Launch(params, tasks))], [table], threads).run()


def memory(nbytes):
    return module._aligned(nbytes)


def test_reading_reads_every_region_as_often_as_asked() -> None:
    size = block_bytes() * 3
    data, sums = memory(size * 4), memory(64)
    data.view(np.int32)[:] = np.arange(data.nbytes // 4)
    run(ReadProbe(), (3, 2, 4), [data, sums], 4)
    lanes = sums.view(np.int32)
    last = data[3 * size :].view(np.int32)  # the sum of the last region stays
    assert int(lanes.sum()) == 2 * int(last.sum())


def test_copying_copies() -> None:
    size = block_bytes() * 2
    source, target = memory(size * 5), memory(size * 5)
    source[:] = np.random.default_rng(0).integers(0, 255, source.nbytes)
    run(CopyProbe(), (2, 1, 5), [source, target], 5)
    np.testing.assert_array_equal(target, source)


def test_regions_of_threads_are_their_own() -> None:
    size = block_bytes()
    source, target = memory(size * 2), memory(size * 2)
    source[:] = 7
    run(CopyProbe(), (1, 1, 0), [source, target], 3, threads=1)
    assert (target[:size] == 7).all()
    assert not target[size:].any()


def test_multiplying_sums_what_it_says() -> None:
    sums = memory(64)
    sums.view(np.float32)[:] = 2
    probe = MultiplyProbe("f32")
    run(probe, (5,), [sums], 1)
    total = float(sums.view(np.float32)[: probe.operations // 24].sum())
    assert total == probe.operations / 2 * 5 * 4  # each multiply-add adds 2 x 2


@pytest.mark.parametrize("level", ["native", "avx2", "sse2"])
def test_probes_compile_for_lesser_machines(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "pni ssse3 sse4_1 sse4_2 popcnt cx16 lahf_lm avx avx2 bmi1 bmi2 f16c fma abm movbe"
    flags += " avx512f avx512bw avx512cd avx512dq avx512vl avx512_vnni"
    at = describe("x86_64", f"flags : {flags}", level)
    monkeypatch.setattr("accord.profile.probes.machine", lambda: at)
    assert multiply_dtypes(at) == (("f32", "f64", "i8") if level == "native" else ("f32", "f64"))
    for probe in (ReadProbe(), CopyProbe(), *map(MultiplyProbe, multiply_dtypes(at))):
        assert probe.symbol in build(probe.module(probe.symbol), at).entries


def test_measured_figures_are_sane() -> None:
    found = measure(1)
    assert [x.name for x in found.levels][:2] == ["L1", "L2"]
    assert found.levels[-1].name == "memory"
    assert found.multiply["f32"].best > 5e8
    assert 1.2 < found.multiply["f32"].best / found.multiply["f64"].best < 3
    assert found.levels[0].read.best > found.levels[-1].read.best
    assert all(0 <= r.spread < 1 for r in found.multiply.values())
    assert found.level(1000).name == "L1"
    assert found.level(1 << 40).name == "memory"


def test_figures_are_kept_unless_disturbed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_MEASURED", {})
    calls: list[int] = []
    speed, spread = 1e11, 0.0

    def fake(threads: int):
        calls.append(threads)
        return replace(PEAKS, threads=threads, multiply={"f32": Rate(speed, spread)})

    monkeypatch.setattr(module, "measure", fake)
    assert peaks(1) == peaks(1)
    assert calls == [1]
    module._MEASURED.clear()  # another process
    assert peaks(1).multiply["f32"].best == speed
    assert calls == [1]
    speed = 2e11
    assert peaks(1, again=True).multiply["f32"].best == 2e11
    speed = 1e11
    assert peaks(1, again=True).multiply["f32"].best == 2e11, "the best of both"
    (entry,) = (tmp_path / "peaks").iterdir()
    entry.write_bytes(b"damaged")
    module._MEASURED.clear()
    spread = 0.9
    assert peaks(1).disturbed
    assert Storage("peaks").read(module._key(1)) is None, "a disturbed measurement is of this process only"
    before = len(calls)
    assert peaks(1).disturbed
    assert len(calls) == before


def test_threads_that_do_not_run_together_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    monkeypatch.setattr(module, "_MEASURED", {})
    monkeypatch.setattr(module, "measure", lambda threads: replace(PEAKS, threads=threads))
    found = peaks(2)
    assert found.scaling == 1
    assert found.disturbed
    assert not peaks(1).disturbed


def test_an_entry_of_another_form_is_as_if_it_were_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setenv("ACCORD_CACHE", str(tmp_path))
    for content in (b"[]", b"{}", b'{"levels": [{"name": 1}]}', b"\xff"):
        Storage("peaks").write("k", [content])
        assert module._read("k") is None


def test_the_least_time_for_some_work() -> None:
    assert bound(PEAKS, "f32", 10**9, 1000, 1000).seconds == pytest.approx(0.01)
    assert bound(PEAKS, "f64", 10**9, 1000, 1000).seconds == pytest.approx(0.02)
    far = bound(PEAKS, "f32", 1000, 10**9, 10**8)
    assert (far.seconds, far.level) == (pytest.approx(0.11), "memory")
    assert far.transfer > far.arithmetic
    none = bound(PEAKS, None, 10**9, 0, 0)
    assert (none.seconds, none.arithmetic) == (0, 0)
