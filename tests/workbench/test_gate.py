"""The gate: its statistics on made-up samples, baselines that cannot be used, and real kernels."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accord.errors import AccordError
from accord.workbench import gate
from accord.workbench.baseline import Baseline, BaselineError, Entry, key_of, read, write
from accord.workbench.measure import Wanted
from bench_harness import TRICKS, declare

pytest_plugins = ["pytester"]


def samples(rng, processes=8, blocks=20, *, kernel=1.0, speed=1.0, copy=1.0, busy=0.0, spread=0.003):
    """Blocks as a machine gives them: a little noise between processes and blocks, and interruptions in some."""
    found = []
    for _ in range(processes):
        own = rng.normal(0, spread)
        found.append([])
        for _ in range(blocks):
            block = {}
            for kind, base in (("kernel", 70e-6 * kernel), ("arithmetic", 50e-6), ("copy", 40e-6 * copy)):
                time = base * speed * np.exp(rng.normal(own if kind == "kernel" else 0, spread))
                block[kind] = float(time + (rng.exponential(3e-3) if rng.random() < busy else 0))
            found[-1].append(block)
    return found


def verdicts(repeats, **now):
    rng = np.random.default_rng(0)
    before = samples(rng, 12)
    return [gate.judge(before, samples(rng, **now)) for _ in range(repeats)]


@pytest.mark.parametrize("speed", [1.0, 1.3, 0.8])
@pytest.mark.parametrize("busy", [0.0, 0.6])
def test_no_change_never_fails(speed, busy):
    found = verdicts(100, speed=speed, busy=busy)
    assert all(j.verdict == "pass" for j in found)
    assert max(abs(j.loss) for j in found) < 0.02


@pytest.mark.parametrize("speed", [1.0, 1.2])
@pytest.mark.parametrize("busy", [0.0, 0.6])
def test_a_drift_of_six_percent_fails(speed, busy):
    found = verdicts(20, kernel=1.06, speed=speed, busy=busy)
    assert sum(j.verdict == "fail" for j in found) >= 19
    assert all(j.machine["arithmetic"] == pytest.approx(speed - 1, abs=0.02) for j in found)


def test_a_gain_is_told():
    assert all(j.verdict == "faster" for j in verdicts(10, kernel=0.8))


def test_noise_hides_what_it_exceeds():
    found = verdicts(10, kernel=1.08, spread=0.15)
    assert all(j.noise > 0.05 for j in found)
    assert not [j for j in found if j.verdict == "fail" and j.loss <= j.noise]
    text = gate.sentence({"verdict": "pass", "noise": 0.2, "loss": 0.08, "code_changed": False})
    assert "could not be seen" in text


def test_a_machine_that_is_another_one_fails_nothing():
    """Memory that lost a third, for the kernel a sixth: neither calibration kernel tells how much of it is its own."""
    found = verdicts(10, kernel=1.18, copy=1.33)
    assert all(j.verdict == "pass" and j.discord > 0.2 for j in found)


@settings(max_examples=50, deadline=None)
@given(st.floats(0.5, 2), st.integers(0, 1 << 30))
def test_times_scale_out(scale, seed):
    rng = np.random.default_rng(seed)
    before, now = samples(rng, 4, 4), samples(rng, 4, 4)
    scaled = [[{k: v * scale for k, v in b.items()} for b in p] for p in now]
    a, b = gate.judge(before, now), gate.judge(before, scaled)
    assert b.loss == pytest.approx(a.loss, abs=1e-9)
    assert b.machine["copy"] + 1 == pytest.approx((a.machine["copy"] + 1) * scale)
    assert gate.judge(before, before).loss == 0


# files


@pytest.fixture
def stored(tmp_path):
    rng = np.random.default_rng(1)
    entry = Entry(
        Wanted("shop::Double", (str(tmp_path / "ops.py"),), {"N": (100,)}),
        "python",
        "0123",
        {"turns": 1, "blocks": 1, "passes": 1, "threads": 1, "code": "x"},
        samples(rng, 3, 2),
        {"p50": 1e-5, "p95": 2e-5, "p99": 3e-5},
    )
    baseline = Baseline.empty()
    baseline.entries[key_of(entry.wanted, entry.kernel)] = entry
    path = tmp_path / "baseline.json"
    write(path, baseline)
    return path


def test_a_baseline_comes_back(stored):
    found = read(stored)
    assert list(found.entries) == ["shop::Double/python N=100"]
    entry = found.entries["shop::Double/python N=100"]
    assert entry.wanted.load == (str((stored.parent / "ops.py").resolve()),)
    assert str(stored.parent) not in stored.read_text(), "a baseline moves with its file of operators"
    found.check_machine(stored)
    write(stored, found)
    assert read(stored).entries == found.entries


def changed(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def entry_of(data):
    return next(iter(data["entries"].values()))


DAMAGE = {
    "cut off": (lambda p: p.write_text(p.read_text()[:100]), "is no JSON"),
    "empty": (lambda p: p.write_text(""), "is no JSON"),
    "binary": (lambda p: p.write_bytes(b"\xff\xfe\x00"), "cannot be read"),
    "something else": (lambda p: p.write_text('{"a": 1}'), "is no baseline"),
    "a list": (lambda p: p.write_text("[]"), "is no baseline"),
    "older": (lambda p: changed(p, lambda d: d.update(format=0)), "another format"),
    "edited": (lambda p: changed(p, lambda d: entry_of(d).update(kernel="c")), "checksum"),
    "without samples": (lambda p: changed(p, lambda d: d.pop("entries")), "damaged"),
    "missing": (lambda p: p.unlink(), "there is no baseline"),
}


@pytest.mark.parametrize("damage", list(DAMAGE))
@pytest.mark.parametrize("update", [False, True])
def test_what_is_no_baseline_is_refused_and_stays(stored, damage, update):
    harm, words = DAMAGE[damage]
    harm(stored)
    before = stored.read_bytes() if stored.exists() else None
    if update and before is None:
        return
    with pytest.raises(BaselineError, match=words):
        gate.save(stored, []) if update else gate.gate(stored)
    assert (stored.read_bytes() if stored.exists() else None) == before
    assert [p.name for p in stored.parent.iterdir()] == (["baseline.json"] if before is not None else [])


@pytest.mark.parametrize("value", [float("nan"), -1.0, 0.0])
def test_times_that_are_none_are_refused(stored, value):
    baseline = read(stored)
    next(iter(baseline.entries.values())).samples[0][0]["kernel"] = value
    write(stored, baseline)
    with pytest.raises(BaselineError, match="damaged"):
        read(stored)


@pytest.mark.parametrize("what", ["processor", "instructions", "cores", "memory", "ACCORD_CPU"])
def test_other_machines_are_refused(stored, what):
    baseline = read(stored)
    baseline.machine[what] = "another"
    write(stored, baseline)
    before = stored.read_bytes()
    for use in (lambda: gate.gate(stored), lambda: gate.save(stored, [])):
        with pytest.raises(BaselineError, match=f"another machine.*{what} another"):
            use()
    assert stored.read_bytes() == before


def test_other_calibration_kernels_and_unknown_entries_are_refused(stored):
    with pytest.raises(BaselineError, match="calibration kernels"):
        gate.gate(stored)
    with pytest.raises(BaselineError, match="has no entry 'a/b'"):
        gate.gate(stored, keys=["a/b"])


def test_a_folder_that_is_not_there(stored, tmp_path):
    with pytest.raises(AccordError, match="cannot be written"):
        write(tmp_path / "nowhere" / "b.json", read(stored))


def test_markdown(stored):
    good = {
        "verdict": "pass", "loss": 0.01, "noise": 0.02, "machine": {"copy": 0.03}, "code_changed": True,
        "seconds": {"baseline": {"p95": 1e-5}, "now": {"p95": 1.1e-5}}, "benchmark": "a::B/c",
    }  # fmt: skip
    bad = {**good, "verdict": "fail", "loss": 0.1}
    report = {
        "verdict": "fail", "baseline": "b.json", "limit": 0.05, "machine": Baseline.empty().machine, "notes": ["n"],
        "benchmarks": [good, bad, {"benchmark": "x", "verdict": "error", "error": "a | b\nc"}],
    }  # fmt: skip
    lines = gate.markdown(report).splitlines()
    rows = [x for x in lines if x.startswith("| ")]
    assert len(rows) == 4
    assert all(len(x.replace("\\|", "").split("|")) == 10 for x in rows)
    assert "lost 10.0%" in rows[2]
    assert lines[-1] == "- n"


# kernels

WORK = """
#include <stdint.h>
static void part(const float *x, float *y, int64_t n) {
    for (int64_t i = 0; i < n; i++) {
        float v = x[i];
        for (int k = 0; k < 8; k++) v = v * 0.999f + 0.001f * v * v;
        y[i] = v;
    }
}
int32_t work(const float *x, float *y, int64_t N, void *stream) {
    part(x, y, N);
    for (int again = 0; again < EXTRA / 100; again++) part(x, y, N);
    part(x, y, N * (EXTRA % 100) / 100);
    return 0;
}
"""
OPERATOR = """
import numpy as np
import accord
from pathlib import Path
from accord import Tensor

@accord.operator("shop::Work")
def work(x: Tensor["float32", "N"]) -> Tensor["float32", "N"]:
    for _ in range(8):
        x = x * np.float32(0.999) + np.float32(0.001) * x * x
    return x

work.library(Path(__file__).parent / "work.so", "work")
"""


def build(folder, extra):
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("there is no C compiler")
    (folder / "work.c").write_text(WORK)
    (folder / "ops.py").write_text(OPERATOR)
    command = [compiler, "-O2", "-fPIC", "-shared", f"-DEXTRA={extra}", "-o", folder / "work.so", folder / "work.c"]
    subprocess.run(command, check=True)
    return Wanted("shop::Work", (str(folder / "ops.py"),), {"N": (8192,)})


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    """A baseline of few processes, for a quick suite; benchmarks/gate.py measures how often the gate is right."""
    folder = tmp_path_factory.mktemp("guarded")
    wanted = build(folder, 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gate, "_BASELINE_PROCESSES", 4)
        gate.save(folder / "b.json", [(wanted, "c")])
    return folder


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(gate, "_PROCESSES", 4)


def test_the_same_kernel_passes_and_one_that_works_ten_times_fails(guarded, quick):
    """So much more that a machine whose own times double at moments, which excuses less, is no excuse."""
    build(guarded, 0)
    report = gate.gate(guarded / "b.json")
    assert report["verdict"] == "pass", report
    build(guarded, 900)
    report = gate.gate(guarded / "b.json")
    result = report["benchmarks"][0]
    assert report["verdict"] == "fail", report
    assert 3 < result["loss"] < 30
    assert result["rounds"] == 3
    assert result["code_changed"]
    assert "the kernel's code has changed" in gate.sentence(result)


def test_a_kernel_that_became_wrong_is_no_pass(guarded, quick):
    (guarded / "ops.py").write_text(OPERATOR.replace("    return x", "    return x + 1"))
    report = gate.gate(guarded / "b.json")
    assert report["verdict"] == "fail"
    assert "is wrong" in report["benchmarks"][0]["error"]
    (guarded / "ops.py").write_text(OPERATOR.replace('"work")', '"work", name="other")'))
    assert "there is no kernel 'c'" in gate.gate(guarded / "b.json")["benchmarks"][0]["error"]


def test_a_trick_is_no_baseline(tmp_path, quick):
    wanted = Wanted("shop::Double", (declare(tmp_path, TRICKS["skipped"][0]),), {"N": (1000,)})
    with pytest.raises(AccordError, match="is wrong in a timed run"):
        gate.save(tmp_path / "b.json", [(wanted, "python")])
    assert not (tmp_path / "b.json").exists()


def test_the_fixture_of_pytest(guarded, pytester):
    build(guarded, 0)
    for name in ("ops.py", "work.so", "b.json"):
        shutil.copy(guarded / name, pytester.path / name)
    pytester.makepyfile(
        test_it="""
        def test_gate(accord_gate):
            accord_gate("shop::Work", load="ops.py", kernel="c", sizes={"N": 8192})
        def test_unknown(accord_gate):
            accord_gate("shop::Work", load="ops.py", kernel="d", sizes={"N": 8192})
        """
    )
    name = "accord.workbench.pytest_plugin"
    installed = any(e.value == name for e in importlib.metadata.entry_points(group="pytest11"))
    plugin = [] if installed else ["-p", name]
    skipped = pytester.runpytest_subprocess(*plugin)
    skipped.assert_outcomes(skipped=2)
    result = pytester.runpytest_subprocess(*plugin, "--accord-baseline", "b.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*has no entry 'shop::Work/d N=8192'*"])


@pytest.mark.slow
def test_repeats_and_a_planted_drift(tmp_path):
    wanted = build(tmp_path, 0)
    gate.save(tmp_path / "b.json", [(wanted, "c")])
    clean = [gate.gate(tmp_path / "b.json")["verdict"] for _ in range(20)]
    build(tmp_path, 6)
    drift = [gate.gate(tmp_path / "b.json")["verdict"] for _ in range(10)]
    assert clean.count("fail") == 0
    assert drift.count("fail") >= 9


def test_entries_are_named_by_what_was_asked_for():
    wanted = Wanted("a::B", (), {"N": (3,), "x": (2, 4)}, {"alpha": 0.5}, "float16", threads=2)
    assert key_of(wanted, "c") == "a::B/c N=3 x=2x4 alpha=0.5 float16 threads=2"
    assert key_of(replace(wanted, sizes={}, attributes={}, dtype=None, threads=1), "c") == "a::B/c"
