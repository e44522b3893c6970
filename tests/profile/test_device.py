"""What a GPU did, from records: whose kernel is whose, why it waits, what should not happen."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from device_harness import DEFAULT, H200, OTHER, OWN, Story, call, copy, kernel, kernel_bytes, key
from profile_harness import profile_of, step

from accord.backends.cuda.cupti import Call, Copy, Fill, Kernel, Wait, read_record, recording
from accord.errors import BackendError
from accord.profile.advice import advise
from accord.profile.device import analyse
from accord.profile.nsight import Counters, counters_of, parse, with_counters
from accord.profile.occupancy import occupancy
from accord.profile.trace import chrome_trace
from accord.runtime.observed import Operand


def graph_story(nodes=(11, 12, 13), shift=0, story=None, order=(0, 1, 2)):
    """Three kernels of a graph; times in nanoseconds."""
    told = story or Story()
    told.run(shift, shift + 60_000)
    told.segment(shift + 1_000, shift + 55_000, 0, 1, 2)
    told.add(call("cuGraphLaunch", shift + 2_000, shift + 6_000, 50 + shift))
    for place in order:
        start = shift + 10_000 + 10_000 * place
        told.add(kernel(f"k{place}", start, start + 8_000 + place, 50 + shift, node=nodes[place]))
    return told


def analysed(story):
    return analyse(story.activity, story.runs, "GPU", H200)


def test_kernels_of_a_graph_belong_to_steps_in_the_order_of_capture():
    # two branches: the kernel that was captured second began last
    told = graph_story(nodes=(11, 13, 12))
    found = analysed(told)
    assert [(k.name, k.step) for k in found.kernels] == [("k0", key(0)), ("k2", key(1)), ("k1", key(2))]
    assert all(k.graph for k in found.kernels)
    assert found.without_graph == ""


def test_times_are_medians_over_runs_and_the_timeline_is_the_middle_run():
    told = Story()
    for k in range(3):
        graph_story(shift=k * 100_000, story=told)
        told.activity.records[-1] = kernel(
            "k2", k * 100_000 + 30_000, k * 100_000 + 31_000 + 5_000 * k, 50 + k * 100_000, node=13
        )
    found = analysed(told)
    assert found.kernels[2].seconds == pytest.approx(6e-6)
    assert found.span == pytest.approx(26e-6)
    assert found.busy == pytest.approx((8_000 + 8_001 + 6_000) * 1e-9)
    assert [w.start for w, _ in found.timeline] == [10_000, 20_000, 30_000]


def test_a_kernel_that_started_early_has_its_own_time():
    """What it waits for the one in front of it on its stream is that one's; on another stream it runs beside it."""
    told = Story()
    told.run(0, 60_000)
    told.segment(1_000, 55_000, 0, 1, 2)
    told.add(call("cuGraphLaunch", 2_000, 6_000, 50))
    told.add(kernel("k0", 10_000, 18_000, 50, node=11))
    told.add(kernel("k1", 16_000, 25_000, 50, node=12))
    told.add(kernel("k2", 12_000, 20_000, 50, node=13, stream=OTHER))
    found = analysed(told)
    assert [k.seconds for k in found.kernels] == pytest.approx([8e-6, 7e-6, 8e-6])
    assert found.busy == pytest.approx(15e-6)


def test_a_run_with_other_launches_is_left_out_of_the_medians():
    told = Story()
    for k in range(3):
        graph_story(shift=k * 100_000, story=told)
    told.add(kernel("stray", 240_000, 249_000, 50 + 200_000, node=14))
    assert [k.name for k in analysed(told).kernels] == ["k0", "k1", "k2"]


@pytest.mark.parametrize(
    ("names", "started", "steps"),
    [
        # one of each call
        (["a", None, "b"], ["a", "sgemm", "b"], [0, 1, 2]),
        # what lies between two of ours is the call's
        (["a", None, "b"], ["a", "memset", "sgemm", "reduce", "b"], [0, 1, 1, 1, 2]),
        ([None], ["sgemm", "splitKreduce_kernel"], [0, 0]),
        # several calls, told apart by what adds parts of sums
        ([None, None, "b"], ["sgemm", "splitKreduce_kernel", "hgemm", "b"], [0, 0, 1, 2]),
        ([None, None, "b", None], ["sgemm", "hgemm", "splitKreduce_kernel", "b", "x", "y"], [0, 1, 1, 2, 3, 3]),
        # or not at all, and what else there is has its step
        (["a", None, None, "b"], ["a", "sgemm", "other", "hgemm", "b"], [0, None, None, None, 3]),
        # a kernel of ours that is not there
        (["a", None, "b"], ["a", "sgemm", "reduce", "c"], [None] * 4),
        (["a", None], ["a", "sgemm", "reduce", "a"], [None] * 4),
        # and one that is nobody's
        (["a", "b"], ["a", "x", "b"], [0, None, 1]),
    ],
)
def test_calls_of_a_library_have_all_its_kernels(names, started, steps):
    told = Story()
    told.run(0, 60_000)
    told.segment(1_000, 55_000, *range(len(names)), names=tuple(names))
    told.add(call("cuGraphLaunch", 2_000, 6_000, 50))
    for place, name in enumerate(started):
        start = 10_000 + 5_000 * place
        told.add(kernel(name, start, start + 4_000, 50, node=1 + place))
    assert [k.step for k in analysed(told).kernels] == [None if s is None else key(s) for s in steps]


def test_kernels_that_do_not_match_the_plan_have_no_step():
    told = graph_story()
    told.add(kernel("extra", 40_000, 41_000, 50, node=14))
    assert {k.step for k in analysed(told).kernels} == {None}


def test_copies_that_were_not_needed_are_skipped():
    told = Story()
    told.run(0, 50_000)
    told.segment(1_000, 40_000, copies=((0, 4096), (1, 512), (2, 64)))
    told.add(call("cuMemcpyHtoDAsync", 2_000, 3_000, 1), copy("host to device", 5_000, 6_000, 1, nbytes=512))
    told.add(call("cuMemcpyDtoHAsync", 3_000, 4_000, 2), copy("device to host", 7_000, 8_000, 2, nbytes=64))
    found = analysed(told)
    assert [(c.step, c.nbytes) for c in found.copies] == [(key(1), 512), (key(2), 64)]


def test_causes_of_gaps():
    told = Story()
    told.run(0, 200_000)
    told.segment(1_000, 20_000, 0, 1)
    told.add(call("cuLaunchKernel", 2_000, 3_000, 1), kernel("a", 5_000, 10_000, 1))
    told.add(call("cuLaunchKernel", 18_000, 19_000, 2), kernel("b", 20_000, 25_000, 2))  # the host was late
    told.host(30_000, 60_000, 2)
    told.segment(61_000, 190_000, 3, 4, 5, 6)
    told.add(call("cuLaunchKernel", 62_000, 63_000, 3), kernel("c", 65_000, 70_000, 3))  # behind a step of the host
    told.add(call("cuCtxSynchronize", 71_000, 90_000, 4))
    told.add(call("cuLaunchKernel", 91_000, 92_000, 5), kernel("d", 94_000, 95_000, 5))  # behind a wait
    told.add(call("cuLaunchKernel", 91_500, 91_600, 6), kernel("e", 94_000, 120_000, 6, stream=OTHER))
    told.add(call("cuLaunchKernel", 91_700, 91_800, 7), kernel("f", 121_000, 122_000, 7))  # behind another stream
    found = analysed(told)
    assert [(g.before, g.cause) for g in found.gaps if g.stream == OWN] == [
        ("a", "the host prepares the run"),
        ("b", "the host starts it late"),
        ("c", "a step runs on the host"),
        ("d", "the host waits in cuCtxSynchronize"),
        ("f", "it waits for another stream"),
        ("", "the host ends the run"),
    ]
    assert found.causes()["a step runs on the host"] == pytest.approx(40e-6)


def test_gaps_within_a_graph():
    found = analysed(graph_story())
    assert [g.cause for g in found.gaps][1:-1] == ["between two kernels of a graph"] * 2


def recorded_story():
    """The real run in ``recorded_run.json``."""
    kept = json.loads(Path(__file__).with_name("recorded_run.json").read_text())
    kinds = {"Kernel": Kernel, "Copy": Copy, "Call": Call, "Wait": Wait}
    told = Story()
    told.run(0, kept["programs"][-1][1] + 1)
    for kind, rows in kept["records"].items():
        given = {"context": 1} if kind in ("Kernel", "Copy") else {}
        for row in rows:
            fields = dict(zip(kept["fields"][kind], row, strict=True))
            told.add(kinds[kind](**given, **{n: tuple(v) if isinstance(v, list) else v for n, v in fields.items()}))
    ended, step = None, 0
    for start, end in kept["programs"]:
        if ended is not None:
            told.host(ended + 1, start - 1, step)
            step += 1
        calls = {r.correlation: r.start for r in told.activity.records if isinstance(r, Call)}
        inside = [
            r for r in told.activity.records if isinstance(r, (Kernel, Copy)) and start <= calls[r.correlation] <= end
        ]
        count = sum(isinstance(r, Kernel) for r in inside)
        copies = tuple((step + count + k, r.nbytes) for k, r in enumerate(r for r in inside if isinstance(r, Copy)))
        told.segment(start, end, *range(step, step + count), copies=copies)
        step += count + len(copies)
        ended = end
    return told


def test_a_run_that_was_recorded_on_an_h200():
    found = analysed(recorded_story())
    assert (len(found.kernels), len(found.copies)) == (106, 6)
    assert None not in {k.step for k in found.kernels} | {c.step for c in found.copies}
    in_order = [k.step[1] for k in found.kernels]
    assert in_order == sorted(in_order)  # the numbers of a graph's nodes follow the order of capture
    assert sum(k.graph for k in found.kernels) == 104  # two parts have one kernel each
    assert found.without_graph == ""
    assert {f.kind for f in found.findings} == {"pageable copy"}
    assert found.span == pytest.approx(6.7e-3, rel=0.2)
    assert 0.5 < found.busy / found.span < 0.95
    causes = found.causes()
    assert causes["a step runs on the host"] == pytest.approx(1.46e-3, rel=0.01)
    assert found.busy + sum(causes.values()) == pytest.approx(6.88e-3, rel=0.01)  # all of the run
    assert causes["the host waits in a copy that is pageable"] > 0
    assert causes["between two kernels of a graph"] < 50e-6
    assert all(1 <= c.nbytes / c.seconds / 1e9 < 60 for c in found.copies)


def planted(*, runtime):
    """A user's step that does all that it should not."""
    told = Story()
    for k in range(2):
        at = 1_000_000 * k
        told.run(at, at + 500_000)
        told.host(at + 1_000, at + 400_000, 3)
        told.add(call("cuLaunchKernel", at + 2_000, at + 3_000, 10 * k + 1))
        told.add(kernel("users", at + 4_000, at + 54_000, 10 * k + 1, stream=DEFAULT))
        if runtime:  # the runtime calls the driver: one finding
            told.add(call("cudaDeviceSynchronize", at + 60_000, at + 90_000, 10 * k + 2, runtime=True))
        told.add(call("cuCtxSynchronize", at + 61_000, at + 89_000, 10 * k + 3))
        told.add(call("cuMemcpyHtoDAsync", at + 100_000, at + 120_000, 10 * k + 4))
        pageable = copy("host to device", at + 101_000, at + 111_000, 10 * k + 4, source="pageable", nbytes=100_000)
        told.add(pageable)
        told.add(call("cuStreamSynchronize", at + 130_000, at + 140_000, 10 * k + 5))
    return told


@pytest.mark.parametrize("runtime", [False, True])
def test_what_should_not_happen_is_found_with_its_step(runtime):
    found = analysed(planted(runtime=runtime)).findings
    name = "cudaDeviceSynchronize" if runtime else "cuCtxSynchronize"
    assert {(f.kind, f.what, f.step, f.times) for f in found} == {
        ("default stream", "users", key(3), 1.0),
        ("synchronisation", name, key(3), 1.0),
        ("synchronisation", "cuStreamSynchronize", key(3), 1.0),
        ("pageable copy", "host to device", key(3), 1.0),
    }
    assert next(f.seconds for f in found if f.kind == "default stream") == pytest.approx(50e-6)


def test_accords_own_waits_are_no_findings():
    told = graph_story()
    told.add(call("cuStreamSynchronize", 7_000, 50_000, 51), Wait("stream", 7_000, 50_000, OWN, 51))
    assert analysed(told).findings == ()


def test_kernels_without_a_graph_are_said_with_the_addresses_that_change():
    told = Story()
    for k in range(2):
        graph_story(nodes=(0, 0, 0), shift=100_000 * k, story=told)
        told.runs[-1].addresses = {"'x'": 4096 + k, "the arena in cuda:0": 1 << 20}
    found = analysed(told)
    assert (
        found.without_graph == "3 kernels of a run were started one by one: the addresses of 'x' change from run to run"
    )
    told.runs[-1].addresses = told.runs[0].addresses
    assert "no address changes" in analysed(told).without_graph


def test_bodies_of_loops_are_windows_within_their_step():
    told = Story()
    told.run(0, 100_000)
    told.host(1_000, 90_000, 5)
    told.runs[-1].windows.append(told.runs[-1].windows[0].__class__(((77, 0),), 2_000, 10_000, False))
    told.add(call("cuLaunchKernel", 3_000, 4_000, 1), kernel("body", 5_000, 6_000, 1))
    told.add(call("cuLaunchKernel", 20_000, 21_000, 2), kernel("own", 22_000, 23_000, 2))
    assert {k.name: k.step for k in analysed(told).kernels} == {"body": (77, 0), "own": key(5)}


# occupancy: figures of CUDA's occupancy calculator


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks", "share", "limit"),
    [
        (256, 32, 0, 8, 1.0, "threads"),
        (256, 64, 0, 4, 0.5, "registers"),
        (256, 65, 0, 3, 0.375, "registers"),
        (128, 255, 0, 2, 0.125, "registers"),
        (32, 16, 0, 32, 0.5, "blocks"),
        (128, 64, 100 << 10, 2, 0.125, "shared memory"),
        (1024, 64, 0, 1, 0.5, "registers"),
    ],
)
def test_occupancy(threads, registers, shared, blocks, share, limit):
    found = occupancy(H200, threads, registers, shared, 132 * 32 * 10)
    assert (found.blocks, found.share, found.limit) == (blocks, share, limit)


def test_waves():
    found = occupancy(H200, 256, 64, 0, 132 * 4 + 1)
    assert found.waves == pytest.approx(1 + 1 / 528)
    assert found.wasted == pytest.approx(0.5, abs=0.01)
    small = occupancy(H200, 256, 64, 0, 12)
    assert (small.limit, small.share) == ("grid", 0.125)


# advice


def device_profile(story, *steps, **changes):
    return profile_of(*steps, device=analysed(story), keys={key(i): i for i in range(len(steps))}, gpu="GPU", **changes)


def rules(profile):
    return {a.rule: a for a in advise(profile)}


def test_advice_names_what_should_not_happen():
    steps = [step(f"n{i}", milliseconds=0.05, backend="cuda") for i in range(4)]
    found = rules(device_profile(planted(runtime=False), *steps))
    assert "users in n3" in found["default-stream"].text
    assert "cuCtxSynchronize in n3" in found["synchronisation"].text
    assert "host to device in n3" in found["pageable-copies"].text
    assert found["pageable-copies"].nodes == ("n3",)


def test_advice_on_steps_of_the_host_counts_their_copies():
    told = Story()
    told.run(0, 200_000)
    told.segment(1_000, 20_000, 0)
    told.add(call("cuLaunchKernel", 2_000, 3_000, 1), kernel("a", 5_000, 10_000, 1))
    told.host(21_000, 90_000, 2)
    told.segment(91_000, 120_000, 4)
    told.add(call("cuLaunchKernel", 92_000, 93_000, 2), kernel("b", 95_000, 100_000, 2))
    operand = (Operand("float", (4,), 16),)
    steps = [
        step("a", "MatMul", 0.005, backend="cuda"),
        step("a.to.host", "Copy", 0.01, backend="cuda", bound=None, sources=("a",), readers=("z",), outputs=operand),
        step("z", "NonZero", 0.07, bound=None, reason="no kernel is generated for NonZero"),
        step("z.to.cuda:0", "Copy", 0.02, backend="cuda", bound=None, sources=("z",), readers=("b",), outputs=operand),
        step("b", "MatMul", 0.005, backend="cuda"),
    ]
    found = rules(device_profile(told, *steps))["host-steps"]
    assert "1 step runs on the host: NonZero (no kernel is generated for NonZero)" in found.text
    assert "2 copies" in found.text
    assert found.figures["waited"] == pytest.approx(85e-6)
    assert found.nodes == ("z",)


def test_advice_on_a_slow_kernel_says_what_its_resources_say():
    told = Story()
    told.run(0, 2_000_000)
    told.segment(1_000, 1_900_000, 0)
    wide = kernel("k", 10_000, 1_010_000, 1, registers=255, block=(128, 1, 1), local=64, grid=(300, 1, 1))
    told.add(call("cuLaunchKernel", 2_000, 3_000, 1), wide)
    found = rules(device_profile(told, step("product", "MatMul", 1.0, backend="cuda", operations=10**6)))
    text = found["slow-kernels"].text
    assert "spills or indexes 64 bytes" in text
    assert "registers let only 2 blocks run at once (12% of the threads)" in text
    assert "its last wave is not full (1.14 waves: 43% of the time is lost)" in text
    assert "the longest is product (255 registers)" in found["spills"].text


def test_advice_on_tiny_kernels_and_missing_graphs():
    told = Story()
    told.run(0, 100_000)
    told.segment(1_000, 90_000, *range(8))
    for k in range(8):
        at = 10_000 + 10_000 * k
        told.add(call("cuLaunchKernel", at - 5_000, at - 4_000, k), kernel(f"k{k}", at, at + 1_000, k))
    steps = [step(f"n{k}", milliseconds=0.001, backend="cuda") for k in range(8)]
    found = rules(device_profile(told, *steps, outside=90e-6))
    assert "8 kernels of a run were started one by one" in found["no-graph"].text
    told = graph_story()
    found = rules(device_profile(told, *(step(f"n{k}", milliseconds=0.008, backend="cuda") for k in range(3))))
    assert "no-graph" not in found


def test_a_good_run_gets_no_advice_of_its_own():
    told = Story()
    told.run(0, 1_000_000)
    told.segment(1_000, 990_000, 0)
    told.add(call("cuGraphLaunch", 2_000, 3_000, 1), kernel("k", 4_000, 990_000, 1, node=1, registers=32))
    assert advise(device_profile(told, step("product", "MatMul", 0.986, backend="cuda", operations=int(0.9e8)))) == []


# files


def test_the_trace_has_a_track_for_each_stream_and_one_for_copies():
    told = graph_story()
    told.add(kernel("side", 12_000, 14_000, 50, node=20, stream=OTHER), copy("host to device", 8_000, 9_000, 49))
    told.add(call("cuMemcpyHtoDAsync", 7_000, 8_000, 49))
    told.runs[-1].windows[0] = (
        told.runs[-1]
        .windows[0]
        .__class__(tuple(key(i) for i in range(4)), 1_000, 55_000, False, tuple(told.runs[-1].windows[0].launches))
    )
    profile = device_profile(told, *(step(f"n{k}", backend="cuda") for k in range(4)))
    events = chrome_trace(profile)["traceEvents"]
    tracks = {e["args"]["name"]: e["tid"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    assert {f"GPU, stream {OWN}", f"GPU, stream {OTHER}", f"GPU, copies of stream {OWN}"} <= tracks.keys()
    by_track = {}
    for e in events:
        if e["ph"] == "X":
            by_track.setdefault(e["tid"], []).append(e)
    assert len(by_track[tracks[f"GPU, stream {OWN}"]]) == 3
    (moved,) = by_track[tracks[f"GPU, copies of stream {OWN}"]]
    assert (moved["name"], moved["args"]["GB/s"]) == ("copy host to device", 4.096)
    assert by_track[2][0]["name"] == "cuGraphLaunch"


def test_json_names_the_nodes():
    profile = device_profile(planted(runtime=False), *(step(f"n{i}", backend="cuda") for i in range(4)))
    device = profile.data()["device"]
    assert device["kernels"][0]["step"] == "n3"
    assert {f["kind"] for f in device["findings"]} == {"default stream", "synchronisation", "pageable copy"}
    assert device["copies"][0]["bytes_per_second"] == pytest.approx(1e10)


# CUPTI's records


def test_records_are_read_from_their_places():
    data = kernel_bytes(
        kind=10, registers=40, start=5, end=9, context=1, stream=13, grid=7, block=128, static=1024, dynamic=512,
        local=16, correlation=99, name=4096, node=1 << 33,
    )  # fmt: skip
    found = read_record(data, lambda address: f"at {address}", lambda runtime, number: "")
    assert found == kernel(
        "at 4096",
        5,
        9,
        99,
        stream=13,
        node=1 << 33,
        grid=(7, 1, 1),
        block=(128, 1, 1),
        registers=40,
        shared=1536,
        local=16,
    )
    moved = struct.pack("<IBBBBQQQIIII", 1, 1, 1, 3, 0, 640, 5, 9, 0, 1, 13, 7) + bytes(64)
    found = read_record(moved, str, lambda *_: "")
    assert found == Copy("host to device", "pageable", "device", 640, 5, 9, 13, 1, 7, 0)
    assert found.pageable
    filled = struct.pack("<IIQQQIIII", 2, 0, 64, 5, 9, 0, 1, 13, 7) + bytes(64)
    assert read_record(filled, str, lambda *_: "") == Fill(64, 5, 9, 13, 1, 7, 0)
    waited = struct.pack("<IIQQIII", 38, 4, 5, 9, 7, 1, 13) + bytes(16)
    assert read_record(waited, str, lambda *_: "") == Wait("device", 5, 9, 13, 7)
    called = struct.pack("<IIQQIII", 4, 276, 5, 9, 1, 2, 7) + bytes(8)
    names = {(False, 276): "cuMemcpyHtoD_v2"}
    assert read_record(called, str, lambda r, n: names[r, n]) == Call("cuMemcpyHtoD", False, 5, 9, 2, 7)
    assert read_record(struct.pack("<I", 17) + bytes(32), str, lambda *_: "") is None


def test_without_a_gpu_the_reason_is_said():
    from accord.kernels.device import visible

    if visible():
        pytest.skip("there is a GPU")
    with pytest.raises(BackendError, match=r"CUPTI|cupti"), recording():
        pass


# Nsight Compute

NCU = """==PROF== Connected to process 7 (/usr/bin/python3)
==PROF== Profiling "k0" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Kernel Name","dram__bytes.sum","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","Mbyte","%"
"0","7","k0","1.50","25.0"
"1","7","k0","2.50","35.0"
"2","7","k1","1,024.0","50.0"
"""


def test_counters_of_nsight_compute():
    found = parse(NCU)
    assert found["k0"] == Counters(pytest.approx(0.30), pytest.approx(2.0e6))
    device = with_counters(analysed(graph_story()), found)
    assert [(k.name, k.achieved, k.memory_bytes) for k in device.kernels] == [
        ("k0", pytest.approx(0.30), 2_000_000),
        ("k1", pytest.approx(0.5), 1_024_000_000),
        ("k2", None, None),
    ]


def test_what_nsight_compute_says_instead_of_counters_is_told():
    with pytest.raises(BackendError, match="ERR_NVGPUCTRPERM"):
        parse("==PROF== Connected\n==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")


def test_counters_without_the_tool(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda *a, **k: None)
    with pytest.raises(BackendError, match="ncu"):
        counters_of(["true"], 1)
