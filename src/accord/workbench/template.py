"""What ``accord op new`` writes: an operator that works, to start from."""

from __future__ import annotations

import re
from pathlib import Path

from accord.contract.registry import user_contract
from accord.errors import ContractError

__all__ = ["file_name", "write"]

_FILE = '''"""The operator {domain}::{name}.

    accord op check {domain}::{name} --load {file}
    accord op show {domain}::{name} --load {file}
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

import accord
from accord.expr.lang import call

Tensor = accord.Tensor


@accord.operator("{domain}::{name}", since=1)
def {function}(
    x: Tensor["T", ..., "D"],  # noqa: F821
    w: Tensor["T", "D"] | None = None,  # noqa: F821
    *,
    slope: float = 1.0,
) -> Tensor["T", ..., "D"]:  # noqa: F821
    """x · sigmoid(slope · x), times a weight for each column where there is one.

    This function is the meaning: NumPy arrays in, NumPy arrays out, written to be read. Checks evaluate it in float64.
    """
    y = x / (1 + np.exp(-slope * x))
    return y if w is None else y * w


# What is promised; `accord op show` lists all clauses.
{function}.types(T=["float32", "float16"])
{function}.tolerance("float32", rtol=1e-5, atol=1e-6)
{function}.scheduling(fuses="elementwise")

# Inputs for checks, where not any number will do: {function}.values(w=(0.5, 2.0))


@{function}.expression
def element(x, w, *, slope):  # noqa: ANN001, ANN201
    """One element, for the CPU's generated loops: it is fused with what stands before and after it."""
    y = x * call("sigmoid", x * slope)
    return y if w is None else y * w


@{function}.python(name="numpy")
def kernel(x, w, *, slope):  # noqa: ANN001, ANN201
    """All elements at once, for comparison; float16 is computed in float32."""
    z = x.astype(np.float32)
    with np.errstate(over="ignore"):
        y = z / (1 + np.exp(np.float32(-slope) * z))
    return (y if w is None else y * w.astype(np.float32)).astype(x.dtype)


# A C function: write {stem}.c with the prototype that `accord op header {domain}::{name} --load {file}` prints,
# build it with  cc -O2 -fPIC -shared -o lib{stem}.so {stem}.c -lm
if (Path(__file__).parent / "lib{stem}.so").exists():
    {function}.library("lib{stem}.so", "{stem}_{{T}}", types={{"T": ["float32"]}})
'''


def file_name(name: str) -> str:
    """The file for an operator: "channel_shuffle" for "ChannelShuffle"."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def write(qualified: str, folder: Path) -> Path:
    """Write a new operator's file.

    Args:
        qualified: "domain::Name".
        folder: Where it goes; it is made if it is not there.

    Returns:
        Path of the file.

    Raises:
        ContractError: the name is none, or the file is there already.
    """
    domain, separator, name = qualified.rpartition("::")
    if not separator or not domain or not name.isidentifier() or not re.fullmatch(r"[\w.]+", domain):
        raise ContractError("an operator's name has a domain", expected="domain::Name", found=qualified)
    if user_contract(domain, name) is not None:
        raise ContractError(f"the operator {qualified} exists already", remedy="Choose another name.")
    stem = file_name(name)
    path = folder / f"{stem}.py"
    text = _FILE.format(domain=domain, name=name, function=stem, stem=stem, file=path.name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("x") as file:
            file.write(text)
    except FileExistsError as error:
        raise ContractError(f"{path} is there already", remedy="Move it, or choose another name or --dir.") from error
    except OSError as error:
        raise ContractError(f"{path} cannot be written: {error.strerror}") from error
    return path
