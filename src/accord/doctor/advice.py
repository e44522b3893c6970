"""Which runtime suits a model: marks for and against each, tied to facts of the model, the hardware, the options.

The marks are rules, not measurements: what is fast on a model is for ``accord bench --against`` to say. What Accord
cannot do is read from Accord itself: its backends, what its linker can link, what became of the model when compiled.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from accord.doctor.environment import Environment
    from accord.doctor.traits import AccordFit, Traits

__all__ = ["TARGETS", "TEAMS", "WEIGHTS", "Advice", "Case", "Mark", "Verdict", "advise", "case_of", "target_of"]

TARGETS = ("cpu", "nvidia", "intel", "arm", "edge")
WEIGHTS = ("fixed", "updated", "trained")
TEAMS = ("python", "cpp", "ops")
#: A mark that rules a runtime out.
BLOCKED: Final = -100
_LARGE: Final = 2 << 30
_SMALL: Final = 50 << 20
#: Words for sums of marks above a number.
_FITS: Final = ((2, "suits"), (-3, "possible"), (BLOCKED // 2, "poor"), (-(1 << 30), "does not fit"))


@dataclass(frozen=True, slots=True)
class Case:
    """What is to be decided.

    Attributes:
        traits: Of the model.
        fit: What Accord makes of it.
        target: Kind of hardware, one of :data:`TARGETS`.
        found: How that is known: an option, or what is in the machine.
        weights: Whether weights change: one of :data:`WEIGHTS`.
        team: Who works with it: one of :data:`TEAMS`; None if that does not matter.
        devices: Devices that Accord's installed backends serve.
        linkable: Architectures for which Accord makes machine code.
        server: Accord has a server.
        version: Of Accord.
    """

    traits: Traits
    fit: AccordFit
    target: str
    found: str
    weights: str
    team: str | None
    devices: frozenset[str]
    linkable: frozenset[str]
    server: bool
    version: str


@dataclass(frozen=True, slots=True)
class Mark:
    """A point for or against a runtime.

    Attributes:
        points: How much it counts; :data:`BLOCKED` rules the runtime out.
        fact: The fact of the model, the hardware or an option.
        reason: What follows from it.
    """

    points: int
    fact: str
    reason: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is said of one runtime.

    Attributes:
        runtime: Its name.
        fit: "suits", "possible", "poor" or "does not fit".
        points: Sum of the marks.
        marks: For and against, what counts most first.
    """

    runtime: str
    fit: str
    points: int
    marks: tuple[Mark, ...]


@dataclass(frozen=True, slots=True)
class Advice:
    """Which runtime suits.

    Attributes:
        case: What was asked.
        ranking: All runtimes, the best first.
        changes: What would put another one first: a changed fact to the runtime's name.
    """

    case: Case
    ranking: tuple[Verdict, ...]
    changes: Mapping[str, str]


def advise(case: Case) -> Advice:
    """The ranking, and what would change it."""
    ranking = _ranking(case)
    first = ranking[0].runtime
    changes = {}
    for words, other in _variations(case):
        best = _ranking(other)[0].runtime
        if best != first:
            changes[words] = best
    return Advice(case, ranking, changes)


def target_of(environment: Environment) -> tuple[str, str]:
    """The kind of hardware of this machine, and what tells it."""
    cpu = environment.cpu
    if environment.nvidia.devices:
        return "nvidia", f"{len(environment.nvidia.devices)} NVIDIA device files here"
    if cpu.arch.lower() in ("aarch64", "arm64"):
        return "arm", f"the processor here is {cpu.arch}"
    if "intel" in cpu.model.lower():
        return "intel", f"the processor here is {cpu.model}"
    return "cpu", f"the processor here is {cpu.model}, and no NVIDIA device is visible"


def _ranking(case: Case) -> tuple[Verdict, ...]:
    verdicts = []
    for runtime, rules in _RUNTIMES.items():
        marks = sorted(rules(case), key=lambda m: -abs(m.points))
        points = sum(m.points for m in marks)
        fit = next(word for least, word in _FITS if points > least)
        verdicts.append(Verdict(runtime, fit, points, tuple(marks)))
    return tuple(sorted(verdicts, key=lambda v: -v.points))


def _variations(case: Case) -> Iterator[tuple[str, Case]]:
    """Cases that differ in one fact."""
    for target in (t for t in TARGETS if t != case.target):
        yield f"--target {target}", dataclasses.replace(case, target=target, found=f"--target {target}")
    for weights in (w for w in WEIGHTS if w != case.weights):
        yield f"--weights {weights}", dataclasses.replace(case, weights=weights)
    for team in (t for t in TEAMS if t != case.team):
        yield f"--team {team}", dataclasses.replace(case, team=team)
    t = case.traits
    if t.free_axes:
        yield "all sizes fixed", dataclasses.replace(case, traits=dataclasses.replace(t, free_axes=()))
    if t.custom:
        none = dataclasses.replace(t, custom={})
        from accord.doctor.traits import AccordFit

        fit = AccordFit() if case.fit.error else case.fit
        yield "no custom operators", dataclasses.replace(case, traits=none, fit=fit)
    if case.target == "nvidia" and "cuda" not in case.devices:
        yield "a backend of Accord for 'cuda'", dataclasses.replace(case, devices=case.devices | {"cuda"})
    if case.target == "arm" and "aarch64" not in case.linkable:
        yield "Accord generating code for aarch64", dataclasses.replace(case, linkable=case.linkable | {"aarch64"})


# facts in words


def _counts(counts: Mapping[str, int]) -> str:
    names = sorted(counts, key=lambda n: -counts[n])
    shown = ", ".join(f"{n} ×{counts[n]}" if counts[n] > 1 else n for n in names[:4])
    return shown + (f" and {len(names) - 4} more" if len(names) > 4 else "")


def _free(t: Traits) -> str:
    return f"open sizes: {', '.join(t.free_axes[:4])}" + (", ..." if len(t.free_axes) > 4 else "")


def _dynamic(t: Traits) -> str:
    """What makes sizes depend on values; "" if nothing does."""
    parts = [_counts(t.data_dependent)] if t.data_dependent else []
    return f"sizes that depend on values: {', '.join(parts)}" if parts else ""


def _hardware(case: Case) -> str:
    return f"target {case.target} ({case.found})"


# runtimes


def _accord(c: Case) -> Iterator[Mark]:
    t = c.traits
    if c.fit.undeclared:
        reason = "each has to be declared in Python with accord.operator; then it is fused like built-in ones"
        yield Mark(-1, f"custom operators: {_counts(t.custom) or c.fit.error}", reason)
    elif c.fit.error:
        yield Mark(BLOCKED, "compiled here", f"Accord cannot run this model: {c.fit.error}")
    elif c.fit.fallbacks:
        yield Mark(-3, f"slow fall-back for {_counts(c.fit.fallbacks)}", "no kernel is generated for these operators")
    elif c.fit.steps:
        yield Mark(
            2, f"{c.fit.steps} steps when compiled here, none on the slow backend", "all of it is generated code"
        )
    if c.target == "nvidia":
        if "cuda" in c.devices:
            yield Mark(4, _hardware(c), "a backend for 'cuda' is installed")
        else:
            devices = ", ".join(sorted(c.devices))
            reason = f"no backend for 'cuda' is installed (devices: {devices}); it would run on the processor"
            yield Mark(-8, _hardware(c), reason)
    elif c.target in ("arm", "edge") and "aarch64" not in c.linkable:
        reason = f"machine code is made for {', '.join(sorted(c.linkable))} only today"
        yield Mark(BLOCKED if c.target == "arm" else -5, _hardware(c), reason)
    else:
        yield Mark(2, _hardware(c), "kernels are generated for exactly this processor")
    if c.target == "edge":
        yield Mark(-4, _hardware(c), "it needs Python and NumPy at run time")
    if c.target == "intel":
        yield Mark(-1, _hardware(c), "Intel's integrated GPU and NPU are not used")
    if t.free_axes:
        yield Mark(2, _free(t), "sizes stay symbols: one plan for all, and a new shape compiles nothing")
    if dynamic := _dynamic(t):
        yield Mark(1, dynamic, "handled within the plan")
    if t.sequences or t.strings:
        yield Mark(1, _counts(t.sequences) or "strings", "every operator of ONNX is there")
    if t.quantised:
        yield Mark(1, f"quantised: {_counts(t.quantised)}", "8-bit products and packed weights of 2 to 8 bits")
    if t.custom and not c.fit.error:
        yield Mark(2, f"custom operators: {_counts(t.custom)}", "declared in Python; they ran when compiled here")
    if c.weights == "trained":
        yield Mark(BLOCKED, "--weights trained", "it computes no gradients")
    elif c.weights == "updated":
        yield Mark(-1, "--weights updated", "weights are packed when a model is loaded: load it again")
    if c.team == "python":
        yield Mark(2, "--team python", "Python throughout, ONNX Runtime's API, and reasons for what it did")
    elif c.team == "cpp":
        yield Mark(-5, "--team cpp", "there is no C or C++ interface")
    elif c.team == "ops":
        yield Mark(2, "--team ops", "it has a server") if c.server else Mark(-3, "--team ops", "it has no server today")
    if c.version.startswith("0."):
        yield Mark(-1, f"version {c.version}", "young: interfaces may change")


def _onnxruntime(c: Case) -> Iterator[Mark]:
    t = c.traits
    yield Mark(3, "an ONNX file", "reads it as it is, every opset; the widest use")
    reason = {
        "cpu": (2, "mature CPU kernels"),
        "nvidia": (2, "providers for CUDA and TensorRT, with the CPU for the rest"),
        "intel": (1, "OpenVINO as a provider"),
        "arm": (3, "builds for ARM, XNNPACK, CoreML, QNN"),
        "edge": (4, "small builds for mobile and web, with only the operators that a model needs"),
    }[c.target]
    yield Mark(reason[0], _hardware(c), reason[1])
    if t.free_axes and c.target == "nvidia":
        yield Mark(-1, _free(t), "each new shape searches cuDNN's algorithms again unless told otherwise")
    elif t.free_axes:
        yield Mark(1, _free(t), "runs any size")
    if t.microsoft:
        yield Mark(2, f"com.microsoft: {_counts(t.microsoft)}", "its own operators")
    if t.custom:
        yield Mark(-1, f"custom operators: {_counts(t.custom)}", "a library in C++ for each, and no fusion across them")
    if t.trees:
        yield Mark(1, f"ai.onnx.ml: {_counts(t.trees)}", "the reference for these")
    if t.quantised and c.target in ("cpu", "intel", "arm", "edge"):
        yield Mark(1, f"quantised: {_counts(t.quantised)}", "8-bit kernels on the processor")
    if c.weights == "updated":
        yield Mark(-1, "--weights updated", "a new session for new weights")
    elif c.weights == "trained":
        yield Mark(-6, "--weights trained", "training is no longer developed")
    if c.team == "cpp":
        yield Mark(2, "--team cpp", "a stable C interface")
    elif c.team == "python":
        yield Mark(1, "--team python", "a wheel away")
    elif c.team == "ops":
        yield Mark(-1, "--team ops", "a library: it needs a server around it")


def _openvino(c: Case) -> Iterator[Mark]:
    t = c.traits
    yield Mark(2, "an ONNX file", "reads it as it is")
    reason = {
        "cpu": (1, "fast on any x86 processor, made for Intel's"),
        "nvidia": (BLOCKED, "NVIDIA GPUs are not supported"),
        "intel": (5, "Intel's processors, integrated GPUs and NPUs from one program"),
        "arm": (0, "a plug-in for ARM processors exists"),
        "edge": (1, "small on Intel devices"),
    }[c.target]
    yield Mark(reason[0], _hardware(c), reason[1])
    if t.free_axes:
        yield Mark(0, _free(t), "supported on CPU and GPU; the NPU wants fixed sizes")
    if t.sequences:
        yield Mark(-4, f"sequences: {_counts(t.sequences)}", "few of these are known, if any: try read_model first")
    if t.control_flow:
        yield Mark(-1, f"control flow: {_counts(t.control_flow)}", "bodies whose ranks differ are refused")
    if t.microsoft:
        yield Mark(-2, f"com.microsoft: {_counts(t.microsoft)}", "few of these are known: give the unoptimised export")
    if t.custom:
        yield Mark(-2, f"custom operators: {_counts(t.custom)}", "an extension in C++ for each")
    if t.trees:
        yield Mark(-6, f"ai.onnx.ml: {_counts(t.trees)}", "few of these are known, if any")
    if t.quantised:
        yield Mark(2, f"quantised: {_counts(t.quantised)}", "strong 8-bit kernels, with NNCF as its tool")
    if c.weights == "updated":
        yield Mark(-1, "--weights updated", "compile again for new weights")
    elif c.weights == "trained":
        yield Mark(BLOCKED, "--weights trained", "inference only")
    if c.team == "cpp":
        yield Mark(1, "--team cpp", "C and C++ interfaces")
    elif c.team == "ops":
        yield Mark(1, "--team ops", "OpenVINO Model Server")


def _tensorrt(c: Case) -> Iterator[Mark]:
    t = c.traits
    if c.target != "nvidia":
        edge = c.target == "edge"
        yield Mark(-3 if edge else BLOCKED, _hardware(c), "NVIDIA GPUs only" + (": Jetson boards" if edge else ""))
    else:
        yield Mark(8, _hardware(c), "kernels chosen by measurement on the GPU; mostly the fastest there")
        yield Mark(-1, "engines", "built for each GPU and version; building takes minutes")
    if t.free_axes:
        yield Mark(-1, _free(t), "a profile of least, usual and largest sizes for each; outside it a run fails")
    if dynamic := _dynamic(t):
        yield Mark(-2, dynamic, "supported for few operators, with waits for the host")
    if t.control_flow:
        yield Mark(-2, f"control flow: {_counts(t.control_flow)}", "If and Loop with restrictions")
    if t.sequences or t.strings:
        yield Mark(BLOCKED, _counts(t.sequences) or "strings", "not supported")
    if t.microsoft or t.custom:
        both = {**t.microsoft, **t.custom}
        yield Mark(-3, f"operators outside ONNX: {_counts(both)}", "a plug-in for each")
    if t.trees:
        yield Mark(BLOCKED, f"ai.onnx.ml: {_counts(t.trees)}", "this domain is not supported")
    if t.old_quantised:
        yield Mark(
            -4, f"quantised: {_counts(t.old_quantised)}", "only pairs of QuantizeLinear and DequantizeLinear are read"
        )
    elif t.quantised:
        yield Mark(2, f"quantised: {_counts(t.quantised)}", "8-bit and 4-bit tensor cores")
    if t.doubles:
        yield Mark(-2, f"{t.doubles} weights or inputs of float64", "cut to float32")
    if c.weights == "updated":
        yield Mark(-2, "--weights updated", "a refit for weights of the same shape, where the engine was built for it")
    elif c.weights == "trained":
        yield Mark(BLOCKED, "--weights trained", "inference only")
    if c.team == "cpp":
        yield Mark(1, "--team cpp", "a C++ library")
    elif c.team == "python":
        yield Mark(-1, "--team python", "building and profiles are work")


def _pytorch(c: Case) -> Iterator[Mark]:
    t = c.traits
    if "torch" in t.producer.lower():
        yield Mark(1, f"written by {t.producer}", "the PyTorch source exists")
    else:
        yield Mark(-3, f"written by {t.producer or 'an unknown tool'}", "it needs the model as PyTorch source")
    yield Mark(-2, "an ONNX file", "ONNX cannot be read: it starts from the source")
    reason = {
        "cpu": (0, "torch.compile writes C++ for the processor"),
        "nvidia": (4, "torch.compile writes Triton kernels; new operators come here first"),
        "intel": (1, "backends for Intel's processors and GPUs"),
        "arm": (0, "runs there"),
        "edge": (-4, "gigabytes of libraries (ExecuTorch is the small one, with its own export)"),
    }[c.target]
    yield Mark(reason[0], _hardware(c), reason[1])
    if t.free_axes:
        yield Mark(-1, _free(t), "new sizes compile again unless marked dynamic")
    if dynamic := _dynamic(t):
        yield Mark(-1, dynamic, "breaks the graph")
    if t.custom:
        yield Mark(2, f"custom operators: {_counts(t.custom)}", "their source is there, and torch.library takes them")
    if c.weights == "trained":
        yield Mark(12, "--weights trained", "made for training")
    elif c.weights == "updated":
        yield Mark(4, "--weights updated", "load_state_dict into the running model")
    if c.team == "python":
        yield Mark(2, "--team python", "known to everybody")
    elif c.team == "cpp":
        yield Mark(-2, "--team cpp", "AOTInductor packages, for fixed builds")
    elif c.team == "ops":
        yield Mark(-1, "--team ops", "large images; TorchServe is no longer developed")


def _triton_server(c: Case) -> Iterator[Mark]:
    t = c.traits
    yield Mark(
        -1,
        "a server",
        "around one of the runtimes above (ONNX Runtime, TensorRT, OpenVINO, PyTorch), not a runtime itself",
    )
    if c.team == "ops":
        yield Mark(9, "--team ops", "HTTP and gRPC, batching of requests, versions, metrics, several models")
    elif c.team == "cpp":
        yield Mark(-2, "--team cpp", "calls over the network instead of in the process")
    if c.target == "nvidia":
        yield Mark(1, _hardware(c), "several instances on a GPU, several GPUs")
    elif c.target == "edge":
        yield Mark(-6, _hardware(c), "images of several gigabytes")
    if c.weights == "updated":
        yield Mark(2, "--weights updated", "a new version is loaded while the old one serves")
    elif c.weights == "trained":
        yield Mark(BLOCKED, "--weights trained", "inference only")
    if t.free_axes:
        yield Mark(-1, _free(t), "requests of different sizes are not batched together unless made ragged")
    if t.weight_bytes > _LARGE:
        yield Mark(1, f"{t.weight_bytes >> 20} MiB of weights", "one copy serves many clients")
    elif t.weight_bytes < _SMALL and c.team != "ops":
        yield Mark(-1, f"{t.weight_bytes >> 20} MiB of weights", "small enough to run in the caller's process")


_RUNTIMES: Final[Mapping[str, Callable[[Case], Iterator[Mark]]]] = {
    "Accord": _accord,
    "ONNX Runtime": _onnxruntime,
    "OpenVINO": _openvino,
    "TensorRT": _tensorrt,
    "PyTorch (torch.compile)": _pytorch,
    "Triton Inference Server": _triton_server,
}


def case_of(
    traits: Traits, fit: AccordFit, environment: Environment, *, target: str | None, weights: str, team: str | None
) -> Case:
    """The case to decide, with what Accord is able to read from Accord itself.

    Args:
        traits: Of the model.
        fit: What Accord makes of it.
        environment: Of this process; its hardware counts where no target is given.
        target: One of :data:`TARGETS`, or None.
        weights: One of :data:`WEIGHTS`.
        team: One of :data:`TEAMS`, or None.
    """
    import accord
    from accord.backends.cpu.link import LINKABLE

    found = (target, f"--target {target}") if target is not None else target_of(environment)
    return Case(
        traits=traits,
        fit=fit,
        target=found[0],
        found=found[1],
        weights=weights,
        team=team,
        devices=frozenset(environment.backends.values()),
        linkable=frozenset(LINKABLE),
        server=importlib.util.find_spec("accord.serve") is not None,
        version=accord.__version__,
    )
