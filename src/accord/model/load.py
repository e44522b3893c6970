"""Loading: path, bytes, protobuf, graph or file object → a checked graph of our own.

A model is untrusted input. In this order: what the file is (:mod:`~accord.model.formats`), whether its encoding is
whole (:mod:`~accord.model.wire`), whether what it claims is there and within the limits
(:mod:`~accord.model.survey`), and whether its graph can be run at all (:mod:`~accord.model.validate`).
"""

from __future__ import annotations

import difflib
import errno
import logging
import os
import stat
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import onnx_ir as ir

from accord.errors import AccordError, LimitError, ModelError, ModelFormatError
from accord.model.external import ExternalFiles
from accord.model.formats import recognise, recognise_folder, recognise_message
from accord.model.limits import DEFAULT_LIMITS, Limits
from accord.model.own import Own
from accord.model.survey import Survey
from accord.model.validate import validate
from accord.model.wire import MAX_DEPTH, scan

__all__ = ["DEFAULT_LIMITS", "Limits", "load_model"]

_AGAIN = "Copy or download it again, and compare its size with the source's."

_QUIET: ContextVar[bool] = ContextVar("quiet", default=False)

#: Below this size even the worst file takes little memory when it is parsed, and is not scanned first.
_SCAN_FROM = 4 << 20
#: Parts (nodes, attributes, dimensions, ...) that a file may have for each node that the limits allow.
_PARTS_PER_NODE = 40


def load_model(
    source: Any,
    *,
    limits: Limits = DEFAULT_LIMITS,
    base_dir: str | os.PathLike[str] | None = None,
    opened: list[tuple[str, int, int]] | None = None,
) -> ir.Model:
    """The graph of ``source``, checked, and independent of it from now on.

    Args:
        source: Path of an ONNX file, its bytes, a ``ModelProto``, an ``onnx_ir.Model``, or a binary file object, which
            is read from its position to its end.
        limits: How large the model may be.
        base_dir: Folder of external data; by default the folder of the model's path. For anything but a path there is
            no default.
        opened: Gets path, size and time of change (nanoseconds) of each file with external data.

    Returns:
        A graph in topological order, whose values have names that no other value of the model has.

    Raises:
        ModelFormatError: it is no model, or damaged.
        GraphError: its graph is not well formed.
        ModelTypeError: a dtype or shape in it is impossible.
        ExternalDataError: its external data is missing, wrong, or outside the folder.
        LimitError: it is larger than the limits allow.
        UnsupportedError: it needs a newer ``onnx``, or an operator that is not known.
    """
    import onnx

    if isinstance(source, ir.Model):
        return _finish(Own(ExternalFiles(base_dir, opened), limits).copy(source), limits)
    if isinstance(source, onnx.ModelProto):
        return _from_proto(_copy(source), ExternalFiles(base_dir, opened), limits)
    name = None
    if isinstance(source, (str, os.PathLike)):
        path = Path(os.fsdecode(source))
        data = _read(path, limits)
        name = str(path)
        if base_dir is None:
            base_dir = path.parent
    else:
        data = _bytes(source, limits)
    try:
        proto = _parse(data, name, limits)
        del data  # the message has its own copy, and the tensors will have theirs
        return _from_proto(proto, ExternalFiles(base_dir, opened), limits)
    except AccordError as error:
        _add_name(error, name)
        raise


def _add_name(error: AccordError, name: str | None) -> None:
    """Say which file it is, in errors that name no part of it."""
    if name is not None and isinstance(error, ModelError) and error.node is None and error.value is None:
        error.value = name


# getting at the bytes


def _read(path: Path, limits: Limits) -> bytes:
    """The content of the file at ``path``."""
    shown = str(path)
    try:
        # Without O_NONBLOCK, opening a pipe that nobody writes to would wait for ever.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    try:
        facts = os.fstat(handle)
        if stat.S_ISDIR(facts.st_mode):
            found = recognise_folder(path)
            raise ModelFormatError(f"not a file but {found.name}", value=shown, remedy=found.remedy)
        if not stat.S_ISREG(facts.st_mode):
            raise ModelFormatError(
                "a pipe or device, not a file",
                value=shown,
                remedy="Read it yourself and give the bytes: accord.load(stream.read()).",
            )
        _check_size(facts.st_size, limits, shown)
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limits.max_file_bytes + 1)
    except OSError as error:
        raise _unreadable(path, error) from error
    finally:
        os.close(handle)
    _check_size(len(data), limits, shown)  # it may have grown
    return data


def _check_size(size: int, limits: Limits, shown: str | None) -> None:
    if size > limits.max_file_bytes:
        raise LimitError(
            "the model file is too large",
            value=shown,
            expected=f"at most {limits.max_file_bytes:,} bytes",
            found=f"{size:,} bytes",
            remedy="protobuf ends at 2 GiB: save the weights beside it, onnx.save(..., save_as_external_data=True).",
        )


def _unreadable(path: Path, error: Exception) -> ModelFormatError:
    shown = str(path)
    code = error.errno if isinstance(error, OSError) else None
    if code in (errno.ENOENT, errno.ENOTDIR):
        if shown.startswith(("http:/", "https:/", "s3:/", "gs:/", "hf:/")):
            remedy = "Download it first: models are loaded from files."
        else:
            remedy = _nearest(path)
        return ModelFormatError("there is no such file", value=shown, remedy=remedy)
    if code in (errno.EACCES, errno.EPERM):
        return ModelFormatError("no permission to read the file", value=shown, remedy="Change its owner or mode.")
    reason = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return ModelFormatError(f"the file cannot be read: {reason}", value=shown[:200])


def _nearest(path: Path) -> str:
    """What may have been meant by a path that does not exist."""
    folder = path.parent
    try:
        names = sorted(p.name for p in folder.iterdir())
    except OSError:
        return f"The folder '{folder}' does not exist either; the current one is '{Path.cwd()}'."
    near = difflib.get_close_matches(path.name, names, n=1) or [n for n in names if n.endswith(".onnx")][:1]
    if near:
        return f"Did you mean '{folder / near[0]}'?"
    return f"Check the path; the current folder is '{Path.cwd()}'."


def _bytes(source: Any, limits: Limits) -> bytes:
    """The content of a bytes-like or file object."""
    if isinstance(source, (bytes, bytearray, memoryview)):
        _check_size(source.nbytes if isinstance(source, memoryview) else len(source), limits, None)
        return bytes(source)
    read = getattr(source, "read", None)
    if read is None:
        raise ModelFormatError(
            "nothing that a model can be loaded from",
            expected="a path, bytes, onnx.ModelProto, onnx_ir.Model or a binary file object",
            found=f"{type(source).__module__}.{type(source).__qualname__}",
            remedy="Export PyTorch modules first: torch.onnx.export(module, example_inputs)."
            if type(source).__module__.split(".")[0] == "torch" or hasattr(source, "state_dict")
            else None,
        )
    try:
        data = read(limits.max_file_bytes + 1)
    except (OSError, ValueError) as error:
        raise ModelFormatError(f"the file object cannot be read: {error}") from error
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise ModelFormatError(
            "the file object does not give bytes",
            expected="one that was opened in binary mode",
            found=type(data).__name__,
            remedy="Open it with mode 'rb'.",
        )
    _check_size(len(data), limits, None)
    return bytes(data)


# from bytes to a message


def _parse(data: bytes, name: str | None, limits: Limits) -> Any:
    """The message that ``data`` encodes."""
    import onnx
    from google.protobuf.message import DecodeError

    if not data:
        raise ModelFormatError("the file is empty", expected="an ONNX model", found="0 bytes", remedy=_AGAIN)
    found = recognise(data)
    if found is not None:
        raise ModelFormatError(f"not an ONNX model but {found.name}", remedy=found.remedy)
    parts = limits.max_nodes * _PARTS_PER_NODE
    if len(data) >= _SCAN_FROM:
        scan(data, max_messages=parts)
    proto = onnx.ModelProto()
    try:
        proto.ParseFromString(data)
    except DecodeError as error:
        raise _damaged(data, name, parts, error) from error
    if not proto.HasField("graph"):
        known = recognise_message(data)
        if known is not None:
            raise ModelFormatError(f"not an ONNX model but {known.name}", remedy=known.remedy)
        whole = bool(proto.producer_name or proto.opset_import or 1 <= proto.ir_version <= onnx.IR_VERSION)
        raise ModelFormatError(
            "the model has no graph" if whole else "not an ONNX model: no field of one is in it",
            found=f"{len(data)} bytes, the first {data[:8].hex(' ')}",
            remedy=_beside(name) or ("The file is cut off or damaged. " + _AGAIN if whole else "Give an .onnx file."),
        )
    return proto


def _damaged(data: bytes, name: str | None, parts: int, error: Exception) -> ModelFormatError:
    damage = scan(data, max_messages=parts)
    if damage is None:
        return ModelFormatError(f"the file is damaged: {error}", remedy=_AGAIN)
    known = recognise_message(data)
    if known is not None:
        return ModelFormatError(f"not an ONNX model but {known.name}", remedy=known.remedy)
    if damage.offset < 16 and not damage.missing:
        return ModelFormatError(
            "not an ONNX model",
            found=f"{len(data)} bytes, the first {data[:8].hex(' ')}",
            remedy=_beside(name) or "Give an .onnx file.",
        )
    what = "truncated" if damage.missing else "damaged"
    return ModelFormatError(
        f"the file is {what}: {damage.reason}",
        expected=f"at least {len(data) + damage.missing} bytes" if damage.missing else None,
        found=f"{len(data)} bytes; the break is in {damage.path or 'the model'} at byte {damage.offset}",
        remedy=_AGAIN,
    )


def _beside(name: str | None) -> str | None:
    """Where the file looks like the external data of a model beside it."""
    if name is None:
        return None
    path = Path(name)
    try:
        models = sorted(p.name for p in path.parent.glob("*.onnx") if p.name != path.name)
    except OSError:
        return None
    own = [m for m in models if path.name.startswith(Path(m).stem)] or models
    if not own:
        return None
    return f"It may hold the external data of '{own[0]}': load that file instead."


def _copy(source: Any) -> Any:
    """A copy of a ``ModelProto``; protobuf would overflow the stack on one that is nested too deeply."""
    import onnx

    todo: list[tuple[Any, int]] = [(source.graph, 2), *((f, 2) for f in source.functions)]
    for info in source.training_info:
        todo += [(info.initialization, 3), (info.algorithm, 3)]
    while todo:
        message, depth = todo.pop()
        if depth > MAX_DEPTH:
            raise LimitError(
                "graphs or types are nested too deeply", expected=f"at most {MAX_DEPTH} levels of messages"
            )
        if isinstance(message, onnx.TypeProto):
            kind = message.WhichOneof("value")
            if kind in ("sequence_type", "optional_type"):
                todo.append((getattr(message, kind).elem_type, depth + 2))
            elif kind == "map_type":
                todo.append((message.map_type.value_type, depth + 2))
            continue
        if isinstance(message, onnx.GraphProto):
            todo += [(i.type, depth + 2) for i in (*message.input, *message.output)]
        todo += [(i.type, depth + 2) for i in message.value_info]
        attributes = [a for n in message.node for a in n.attribute]
        if isinstance(message, onnx.FunctionProto):
            attributes += message.attribute_proto
        for a in attributes:
            if a.HasField("g"):
                todo.append((a.g, depth + 3))
            if a.HasField("tp"):
                todo.append((a.tp, depth + 3))
            todo += [(g, depth + 3) for g in a.graphs]
            todo += [(t, depth + 3) for t in a.type_protos]
    proto = onnx.ModelProto()
    proto.CopyFrom(source)
    if not proto.HasField("graph"):
        raise ModelFormatError("the model has no graph", remedy="Build it with onnx.helper.make_model.")
    return proto


# from a message to a graph


def _from_proto(proto: Any, files: ExternalFiles, limits: Limits) -> ir.Model:
    """The graph of a message that belongs to the loader."""
    survey = Survey(limits, files)
    survey.run(proto)
    logging.getLogger("onnx_ir.serde").addFilter(_audible)  # once: a second time changes nothing
    quiet = _QUIET.set(True)
    try:
        model = ir.serde.deserialize_model(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError, AttributeError, NotImplementedError) as error:
        cause: BaseException = error
        while cause.__cause__ is not None:
            cause = cause.__cause__
        raise ModelFormatError(f"the model cannot be read: {cause}") from error
    finally:
        _QUIET.reset(quiet)
    Own(files, limits).take(model, survey.types)
    return _finish(model, limits)


def _audible(record: logging.LogRecord) -> bool:
    """Keeps back onnx_ir's warnings of what is an error here, raised later with more to say."""
    return record.levelno >= logging.ERROR or not _QUIET.get()


def _finish(model: ir.Model, limits: Limits) -> ir.Model:
    validate(model, limits)
    return model
