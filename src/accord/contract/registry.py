"""Look-up of contracts: a user's own first, then ``com.microsoft``, then those derived from ONNX schemas.

ONNX schemas are read when an operator is first asked for, so that importing Accord loads no schema.
"""

from __future__ import annotations

import difflib
import functools
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from accord.contract.contract import Attribute, Contract, Execution, Parameter, Scheduling, Semantic, Tolerance
from accord.errors import ContractError, UnknownOperatorError
from accord.ir.infer import RANDOM

__all__ = [
    "BUILT_IN",
    "NEWEST",
    "OWN",
    "TOLERANCE",
    "all_contracts",
    "contract_for",
    "provide",
    "register",
    "unregister",
    "user_contract",
    "user_contracts",
    "user_operators",
]

#: Accord's own domains, and what declares their operators; found without looking through all installed packages.
OWN = {"accord": "accord.library"}

_LOCK = threading.Lock()
_USER: dict[tuple[str, str], list[Contract]] = {}
_SOURCES: list[Callable[[], Mapping[tuple[str, str], Semantic]]] = []

#: Against a float64 reference, by storage dtype.
TOLERANCE = {
    "float64": Tolerance(1e-7, 1e-9),
    "float32": Tolerance(1e-3, 1e-5),
    "float16": Tolerance(1e-2, 1e-3),
    "bfloat16": Tolerance(4e-2, 1e-2),
}
_ACCUMULATE = {"float16": "float32", "bfloat16": "float32"}

_VIEWS = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity"})
#: Fusion class by operator; whatever is missing here is opaque.
_FUSES: dict[str, str] = {
    **dict.fromkeys(
        "Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast "
        "CastLike Ceil Celu Clip Cos Cosh Div Elu Equal Erf Exp Floor Gelu Greater GreaterOrEqual HardSigmoid "
        "HardSwish IsInf IsNaN LeakyRelu Less LessOrEqual Log Max Mean Min Mish Mod Mul Neg Not Or PRelu Pow "
        "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Sub Sum Swish Tan Tanh "
        "ThresholdedRelu Where Xor".split(),
        "elementwise",
    ),
    **dict.fromkeys(
        "ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare Softmax LogSoftmax LayerNormalization RMSNormalization GroupNormalization "
        "InstanceNormalization GlobalAveragePool GlobalMaxPool".split(),
        "reduction",
    ),
    **dict.fromkeys("MatMul Gemm Conv ConvTranspose Attention".split(), "contraction"),
    **dict.fromkeys(
        "Transpose Slice Concat Split Expand Gather Pad Tile DepthToSpace SpaceToDepth Reshape Squeeze Unsqueeze "
        "Flatten Identity".split(),
        "movement",
    ),
}


def register(contract: Contract, *, replacing: Contract | None = None) -> None:
    """Make a user's operator known.

    Args:
        contract: What it promises.
        replacing: A contract of the same operator and version that this one refines.

    Raises:
        ContractError: the same domain, name and version is registered already with another meaning.
    """
    s = contract.semantic
    with _LOCK:
        versions = _USER.setdefault((s.domain, s.name), [])
        if replacing is not None and replacing in versions:
            versions.remove(replacing)
        for other in versions:
            if other.semantic.since_version == s.since_version:
                if other is contract:
                    return
                raise ContractError(
                    f"version {s.since_version} is registered already",
                    op=s.qualified_name,
                    remedy="Give the new meaning a higher `since`, or unregister the old one first.",
                )
        versions.append(contract)
        versions.sort(key=lambda c: c.semantic.since_version)


def unregister(domain: str, name: str) -> None:
    """Forget all versions of a user's operator; nothing happens if there is none."""
    with _LOCK:
        _USER.pop((domain, name), None)


def user_contracts() -> list[Contract]:
    """All registered user contracts."""
    with _LOCK:
        return [c for versions in _USER.values() for c in versions]


def user_operators() -> frozenset[tuple[str, str]]:
    """Domain and name of each registered user operator; Accord's own are as old as Accord's code."""
    with _LOCK:
        return frozenset(key for key in _USER if key[0] not in OWN)


#: Domains whose operators no package has to be asked for.
BUILT_IN = frozenset({"", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "com.microsoft"})


#: Past every version of a domain: asks for the newest.
NEWEST: Final = 1 << 30


def user_contract(domain: str, name: str, version: int = NEWEST) -> Contract | None:
    """The user's contract in force for an operator as of ``version``, or None.

    A domain of which nothing is known is looked for among installed packages.
    """
    if domain not in BUILT_IN and not any(d == domain for d, _ in list(_USER)):
        from accord.contract.sources import load_domain

        load_domain(domain)
    with _LOCK:
        for c in reversed(_USER.get((domain, name), ())):
            if c.semantic.since_version <= version:
                last = c.semantic.until_version
                return c if last is None or version <= last else None
    return None


def contract_for(domain: str, name: str, version: int = NEWEST) -> Contract:
    """The contract in force for an operator as of ``version`` of its domain.

    Raises:
        UnknownOperatorError: there is none; the message suggests the nearest names and versions.
    """
    domain = "" if domain == "ai.onnx" else domain
    found = user_contract(domain, name, version)
    if found is not None:
        return found
    found = _from_schema(domain, name, version)
    if found is None and (domain, name) in (declared := _declared()):
        found = Contract(declared[domain, name])
    if found is None:
        shown = f"{domain}::{name}" if domain else name
        asked = "" if version == NEWEST else f" for version {version} of domain {domain or 'ai.onnx'}"
        raise UnknownOperatorError(
            f"no operator {shown} is known{asked}",
            op=shown,
            remedy=_suggest(domain, name, version),
        )
    return found


def provide(source: Callable[[], Mapping[tuple[str, str], Semantic]]) -> None:
    """Add a table of declared operators (``com.microsoft``); it is read when an operator is first looked up."""
    _SOURCES.append(source)


def _declared() -> dict[tuple[str, str], Semantic]:
    return {key: semantic for source in _SOURCES for key, semantic in source().items()}


def _schema_contract(schema: Any) -> Contract:
    option = {"FormalParameterOption.Optional": "optional", "FormalParameterOption.Variadic": "variadic"}

    def parameter(p: Any) -> Parameter:
        return Parameter(p.name, p.type_str, option.get(str(p.option), "single"), p.is_homogeneous, p.min_arity)

    fuses = _FUSES.get(schema.name, "opaque") if schema.domain == "" else "opaque"
    nullable = tuple(p.name for p in schema.inputs if str(p.option).endswith("Optional"))
    deterministic = schema.name not in RANDOM
    same = [
        i
        for i, p in enumerate(schema.inputs[:3])
        if p.type_str == schema.outputs[0].type_str and option.get(str(p.option)) != "variadic"
    ]
    return Contract(
        Semantic(
            domain=schema.domain,
            name=schema.name,
            since_version=schema.since_version,
            inputs=tuple(parameter(p) for p in schema.inputs),
            outputs=tuple(parameter(p) for p in schema.outputs),
            types={t.type_param_str: frozenset(t.allowed_type_strs) for t in schema.type_constraints},
            attributes={
                a.name: Attribute(a.name, a.type.name, a.required, _default(a)) for a in schema.attributes.values()
            },
            tolerance=TOLERANCE,
            deterministic=deterministic,
            doc=schema.doc or "",
        ),
        Execution(
            layouts=("contiguous",) if fuses == "opaque" else ("contiguous", "strided"),
            accumulate=_ACCUMULATE if fuses in ("reduction", "contraction") else {},
            in_place=tuple((0, i) for i in same) if fuses == "elementwise" else (),
            views=((0, 0),) if schema.domain == "" and schema.name in _VIEWS else (),
            nullable=nullable,
        ),
        Scheduling(fuses=fuses, epilogue=fuses == "contraction", deterministic=deterministic),
    )


def _default(attribute: Any) -> Any:
    import onnx

    proto = attribute.default_value
    if proto is None or proto.type == onnx.AttributeProto.UNDEFINED:
        return None
    value = onnx.helper.get_attribute_value(proto)
    return value.decode() if isinstance(value, bytes) else value


@functools.cache
def _from_schema(domain: str, name: str, version: int) -> Contract | None:
    import onnx.defs

    try:
        schema = onnx.defs.get_schema(name, version, domain)
    except onnx.defs.SchemaError:
        return None
    return None if schema.deprecated else _schema_contract(schema)


def all_contracts() -> list[Contract]:
    """The newest contract of every operator known: ONNX's, ``com.microsoft``'s, those of packages, the user's."""
    import onnx.defs

    from accord.contract.sources import load_all

    load_all()
    derived = [_schema_contract(s) for s in onnx.defs.get_all_schemas() if not s.deprecated]
    declared = [Contract(s) for s in _declared().values()]
    return derived + declared + user_contracts()


def _suggest(domain: str, name: str, version: int) -> str:
    """What is known that comes near, and what to do."""
    import onnx.defs

    schemas = onnx.defs.get_all_schemas_with_history()
    history = [s for s in schemas if s.name == name and s.domain == domain]
    correct = "Ask for such a version." if version == NEWEST else "Convert the model, or correct its opset import."
    if history:
        live = sorted(s.since_version for s in history if not s.deprecated)
        ended = [s.since_version for s in history if s.deprecated]
        text = f"{name} exists from version {live[0]}" if live else f"{name} was never usable"
        if ended:
            text += f" and was removed in version {min(ended)}"
        return f"{text}. {correct}"
    since: dict[tuple[str, str], int] = {}
    for s in schemas:
        since[s.domain, s.name] = min(s.since_version, since.get((s.domain, s.name), s.since_version))
    known = since.keys() | _declared().keys()
    with _LOCK:
        known |= _USER.keys()
        own = [c.semantic for c in _USER.get((domain, name), ())]
    if own:
        spans = [f"versions {s.since_version} to {s.until_version or 'the newest'}" for s in own]
        return f"It is declared for {', '.join(spans)}. {correct}"
    elsewhere = sorted(d or "ai.onnx" for d, n in known if n == name)
    if elsewhere:
        return f"{name} exists in domain {', '.join(elsewhere)}: correct the domain."
    if not any(d == domain for d, _ in known):
        domains = ", ".join(sorted({d or "ai.onnx" for d, _ in known}))
        return (
            f"Nothing is known of domain {domain}, only of {domains}. Correct it, import the file that declares it "
            "(--load FILE on the command line) or declare it "
            "with `accord.operator`, or install the package that offers it."
        )
    declare = "or declare it with `accord.operator` before loading"
    near = difflib.get_close_matches(name, sorted({n for _, n in known}), n=3, cutoff=0.6)
    if not near:
        return f"Check the name and domain, {declare}."
    homes = [(domain if (domain, n) in known else min(d for d, m in known if m == n), n) for n in near]
    named = [f"{d + '::' if d else ''}{n} (since {since.get((d, n), 1)})" for d, n in homes]
    return f"Did you mean {', '.join(named)}? Correct the name, {declare}."
