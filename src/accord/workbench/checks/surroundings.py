"""The kernel among others: libraries that compute for it, graphs around it, tensors larger than 32 bits count."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from accord.workbench.buffers import is_float
from accord.workbench.cases import Case, attributes_of
from accord.workbench.checks.judge import finding, judged
from accord.workbench.compare import compare
from accord.workbench.elf import needs_of
from accord.workbench.findings import Finding
from accord.workbench.graphs import node, one_node, ports
from accord.workbench.lab import Check, Lab, Trial
from accord.workbench.oracle import Expected
from accord.workbench.subject import LEFT, REFUSALS

__all__ = ["CHECKS", "OWN_CODE"]

#: Libraries whose products are not a kernel's own; what the C library and compilers' run times have is.
_LIBRARIES = re.compile(
    r"(open|c|atlas)?blas|lapack|mkl|dnnl|onednn|blis|torch|c10\b|onnxruntime|openvino|tensorflow|xnnpack|qnnpack"
    r"|cudnn|cublas|tvm(?!_ffi)|ncnn|accelerate",
    re.IGNORECASE,
)
_FUNCTIONS = re.compile(
    r"^(cblas_|catlas_|dnnl_|mkl_|LAPACKE_|vs[A-Z]|vd[A-Z]|xnn_|at_|Ort)|^[sdcz](gemm|gemv|symm|syrk|ger|dot)_?$"
)
_PACKAGES = frozenset(
    "torch onnxruntime tensorflow jax jaxlib openvino cupy mxnet paddle tvm keras accord.runtime onnx iree "
    "accord.backends functorch torchvision tf2onnx ort".split()
)


def _one(lab: Lab) -> Iterator[Case]:
    base = lab.explorer.typical()
    if base is not None:
        yield base


def _foreign(lab: Lab, case: Case) -> Finding | None:
    """A kernel computes itself."""
    if lab.kernel is None:
        return None
    own: set[str] = set()
    if lab.kernel.kind in ("library", "tvm_ffi"):
        code: Any = lab.kernel.code
        path = code.get("path") or code.get("module")
        own.add(str(Path(path).resolve()))
        needs = needs_of(path)
        bad = [x for x in needs.libraries if _LIBRARIES.search(x)] + [f for f in needs.functions if _FUNCTIONS.match(f)]
        if bad:
            return _library(lab, None, f"{path} needs {', '.join(bad[:4])}")
    trial = lab.trial(case)
    if trial is None:
        return None
    subject = lab.fresh()
    try:
        subject.child.ask({"do": "held", "scribble": False})  # it is there, and has called nothing
        before = subject.child.libraries()
        lab.call(trial, subject)
        outcome = lab.call(trial, subject, traced=True)
        later = {x for x in subject.child.libraries() - before - own if _LIBRARIES.search(x.rpartition("/")[2])}
    finally:
        subject.child.close()
    used = sorted(_PACKAGES & set(outcome.reply.get("callers", ())))
    if outcome.reply.get("reference"):
        return _library(lab, case, "it calls the operator's reference, so nothing was compared")
    if used or later:
        return _library(lab, case, f"it calls {', '.join((*used, *later))}")
    return None


def _library(lab: Lab, case: Case | None, found: str) -> Finding:
    return finding(
        lab, "meaning", "another library computes instead of the kernel", faults=(12,), case=case,
        expected="code of its own: a C function without BLAS, oneDNN or a runtime; a Python function with NumPy only",
        found=found, remedy="Write the kernel, or declare a `composition` of operators that are there.",
    )  # fmt: skip


# graphs


def _graphs(lab: Lab) -> Iterator[Case]:
    e = lab.explorer
    for types, turn in itertools.product(e.types(), range(2)):
        base = e.typical(types=types) if turn == 0 else e.case(types=types)
        if base is not None and base.sizes.values() and 0 not in base.sizes.values():
            yield base


def _in_graph(lab: Lab, case: Case) -> Finding | None:
    """The operator twice in a graph, between operators that may be fused with it, run again with other data."""
    if lab.findings:
        return None  # what is wrong by itself is wrong in a graph
    trials = [t for seed in range(4) if (t := lab.trial(case.but(seed=case.seed + seed))) is not None and lab.sound(t)]
    if len(trials) < 4 or not all(is_float(e.own.dtype) for e in trials[0].expected):
        return None
    for constants in (False, True):
        for first, second in ((0, 1), (2, 3), (0, 1)):
            a, b = trials[first], trials[second]
            graph, inputs = _surrounded(lab, a, b, constants=constants)
            outcome = lab.subject.run(graph, inputs, case)
            lab.tried += 1
            if outcome.status == "refused" and outcome.reply.get("error") in LEFT:
                return None
            if outcome.status in REFUSALS and not _alone(lab, a):
                lab.notes.append(f"graphs: the runtime cannot run the operator: {outcome.text}")
                return None
            expected = [_negative(e) for e in (*a.expected, *b.expected)]
            found = judged(lab, Trial(case, [], []), outcome)
            if found is None:
                half = len(a.expected)
                for t, part, wanted in ((a, outcome.outputs[:half], expected[:half]),
                                        (b, outcome.outputs[half:], expected[half:])):  # fmt: skip
                    wrong = compare(lab.contract, t.case, part, wanted)
                    if wrong:
                        found = finding(lab, "", "", expected=wrong[0].expected, found=wrong[0].found)
            if found is not None:
                return finding(
                    lab, "scheduling.fuses", "between other operators of a graph the result is wrong",
                    faults=(40, 41, 42), case=case, expected=found.expected, found=found.found,
                    remedy="Look at the promises that the runtime used: `fuses`, `in_place`, `views`, `stateless`, "
                    "`accumulate`, and what the kernel keeps of inputs that look constant.",
                )  # fmt: skip
    return None


def _alone(lab: Lab, trial: Trial) -> bool:
    """Whether a graph of the operator and nothing else runs."""
    attributes = attributes_of(lab.contract.semantic, trial.case)
    graph = one_node(lab.contract, trial.case, attributes, trial.inputs, fixed=lab.fixed)
    return lab.subject.run(graph, trial.inputs, trial.case).ok


def _negative(e: Expected) -> Expected:
    return Expected(-e.value, e.slack, [], -e.own)


def _surrounded(lab: Lab, a: Trial, b: Trial, *, constants: bool) -> tuple[dict[str, Any], list[Any]]:
    """Both calls in one graph; floats go through a negation before and after."""
    s = lab.contract.semantic
    nodes, inputs, given, fixed = [], {}, [], []
    for tag, trial in (("a", a), ("b", b)):
        names = []
        for k, (p, x) in enumerate(zip(s.inputs, trial.inputs, strict=True)):
            if x is None:
                names.append("")
                continue
            name = f"{p.name}_{tag}"
            inputs[name] = ports(lab.contract, trial.case, trial.inputs, fixed=lab.fixed)[p.name]
            constant = constants and k > 0
            if constant:
                fixed.append(name)
            if is_float(x.dtype) and not constant:
                nodes.append(node("Neg", [name], [f"{name}_n"]))
                names.append(f"{name}_n")
                given.append(-x)
            else:
                names.append(name)
                given.append(x)
        made = [f"{p.name}_{tag}_out" for p in s.outputs]
        nodes.append(node(s.name, names, made, s.domain, **attributes_of(s, trial.case)))
        nodes += [node("Neg", [m], [f"{m}_n"]) for m in made]
    outputs = [f"{p.name}_{tag}_out_n" for tag in "ab" for p in s.outputs]
    domains = {s.domain: s.since_version}
    strict = lab.kernel is not None
    return {
        "inputs": inputs, "outputs": outputs, "nodes": nodes, "domains": domains, "constants": fixed, "strict": strict,
    }, given  # fmt: skip


def _apart(lab: Lab) -> bool:
    return not lab.graph and not lab.interpreted and lab.kernel is not None


def _joined(lab: Lab) -> bool:
    return lab.contract.semantic.deterministic and not lab.interpreted


#: First: where others compute, all that is found is about them.
OWN_CODE = (Check("own code", _one, _foreign, _apart, share=0.2),)
CHECKS = (Check("graphs", _graphs, _in_graph, _joined, share=1.0),)
