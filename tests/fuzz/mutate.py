"""Mutations of ONNX models: of their structure, so that most still parse, and of their bytes.

Every mutant is a function of (seed, index) alone, so that a number is all that a report needs.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import onnx
from onnx import AttributeProto, TensorProto

from .damage import BYTES

Change = Callable[[onnx.ModelProto, random.Random, "Sequence[bytes]"], None]

INTS = (0, 1, 2, 3, -1, -2, 7, 64, 255, 1000, 2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e-45, 1e38, -1e38, float("inf"), float("-inf"), float("nan"))
SIZES = (0, 1, 2, 3, 5, 16, 100, -1, -5, 2**16, 2**31, 2**40, 2**62, 2**63 - 1)
TEXTS = ("", "x", "SAME_UPPER", "VALID", "linear", "constant", "nearest", "ij,jk->ik", "…ß", "n" * 3000, "\0")
DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "com.microsoft", "my.domain", "ai.onnx.preview.training")


class NothingToChangeError(Exception):
    """The model has nothing that this mutation could change."""


def pick(rng: random.Random, items):
    items = list(items)
    if not items:
        raise NothingToChangeError
    return rng.choice(items)


# places ---------------------------------------------------------------------------------------------------------


def bodies(model: onnx.ModelProto) -> list:
    """All graphs and functions: what has nodes."""
    found = [model.graph, *model.functions]
    for at in found:  # grows while it is read
        for n in at.node:
            for a in n.attribute:
                if a.HasField("g"):
                    found.append(a.g)
                found.extend(a.graphs)
    return found


def graphs(model: onnx.ModelProto) -> list:
    return [b for b in bodies(model) if isinstance(b, onnx.GraphProto)]


def nodes(model: onnx.ModelProto) -> list:
    return [n for b in bodies(model) for n in b.node]


def attributes(model: onnx.ModelProto) -> list:
    return [a for n in nodes(model) for a in n.attribute]


def tensors(model: onnx.ModelProto) -> list:
    found = [t for g in graphs(model) for t in g.initializer]
    for a in attributes(model):
        if a.HasField("t"):
            found.append(a.t)
    return found


def infos(model: onnx.ModelProto) -> list:
    return [i for g in graphs(model) for i in (*g.input, *g.output, *g.value_info)]


def names(body) -> list[str]:
    declared = [i if isinstance(i, str) else i.name for i in body.input]
    stored = [t.name for t in body.initializer] if isinstance(body, onnx.GraphProto) else []
    return [*declared, *stored, *(o for n in body.node for o in n.output if o)]


def all_names(model: onnx.ModelProto) -> list[str]:
    return [n for b in bodies(model) for n in names(b)]


def donor(rng: random.Random, seeds: Sequence[bytes]) -> onnx.ModelProto:
    return onnx.ModelProto.FromString(pick(rng, seeds))


def copied(message):
    """A copy that shares nothing: protobuf overflows the stack when a message is copied into a part of itself."""
    return type(message).FromString(message.SerializeToString())


# nodes ----------------------------------------------------------------------------------------------------------


def duplicate_node(model, rng, seeds):
    body = pick(rng, (b for b in bodies(model) if len(b.node)))
    twin = copied(pick(rng, body.node))
    if rng.random() < 0.7:
        for i, name in enumerate(twin.output):
            twin.output[i] = f"{name}_copy"
    body.node.append(twin)


def remove_node(model, rng, seeds):
    body = pick(rng, (b for b in bodies(model) if len(b.node)))
    del body.node[rng.randrange(len(body.node))]


def shuffle_nodes(model, rng, seeds):
    body = pick(rng, (b for b in bodies(model) if len(b.node) > 1))
    order = [copied(n) for n in body.node]
    rng.shuffle(order)
    del body.node[:]
    body.node.extend(order)


def rename_node(model, rng, seeds):
    pick(rng, nodes(model)).name = pick(rng, [*TEXTS, *(n.name for n in nodes(model))])


def change_operator(model, rng, seeds):
    source = model if rng.random() < 0.3 else donor(rng, seeds)
    other = copied(pick(rng, nodes(source)))
    node = pick(rng, nodes(model))
    node.op_type, node.domain = other.op_type, other.domain
    if rng.random() < 0.5:
        del node.attribute[:]
        node.attribute.extend(other.attribute)


def misspell_operator(model, rng, seeds):
    node = pick(rng, nodes(model))
    node.op_type = rng.choice((node.op_type[:-1], node.op_type + "s", node.op_type.lower(), "", "Nope"))


def change_domain(model, rng, seeds):
    node = pick(rng, nodes(model))
    node.domain = rng.choice(DOMAINS)
    if rng.random() < 0.2:
        node.overload = rng.choice(TEXTS)


def append_node(model, rng, seeds):
    body = pick(rng, bodies(model))
    node = body.node.add()
    node.CopyFrom(pick(rng, nodes(donor(rng, seeds))))
    known = names(body)
    for i in range(len(node.input)):
        node.input[i] = pick(rng, known)
    for i in range(len(node.output)):
        node.output[i] = f"new_{rng.randrange(10**6)}"
    if isinstance(body, onnx.GraphProto) and len(body.output) and node.output and rng.random() < 0.6:
        body.output[rng.randrange(len(body.output))].name = node.output[0]


# edges ----------------------------------------------------------------------------------------------------------


def rewire(model, rng, seeds):
    node = pick(rng, (n for n in nodes(model) if n.input))
    node.input[rng.randrange(len(node.input))] = pick(rng, all_names(model))


def dangle(model, rng, seeds):
    node = pick(rng, (n for n in nodes(model) if n.input))
    i = rng.randrange(len(node.input))
    node.input[i] = rng.choice((node.input[i] + "x", "", "nowhere", node.input[i][:-1]))


def make_cycle(model, rng, seeds):
    body = pick(rng, (b for b in bodies(model) if len(b.node)))
    produced = [o for n in body.node for o in n.output if o]
    node = pick(rng, (n for n in body.node if n.input))
    node.input[rng.randrange(len(node.input))] = pick(rng, produced)


def change_arity(model, rng, seeds):
    node = pick(rng, nodes(model))
    ports = node.input if rng.random() < 0.6 else node.output
    if ports and rng.random() < 0.5:
        del ports[rng.randrange(len(ports))]
    else:
        ports.insert(rng.randint(0, len(ports)), pick(rng, [*all_names(model), "", "extra"]))


def swap_inputs(model, rng, seeds):
    node = pick(rng, (n for n in nodes(model) if len(n.input) > 1))
    order = list(node.input)
    rng.shuffle(order)
    node.input[:] = order


def same_output(model, rng, seeds):
    node = pick(rng, (n for n in nodes(model) if n.output))
    node.output[rng.randrange(len(node.output))] = pick(rng, all_names(model))


def change_ports(model, rng, seeds):
    """Inputs and outputs of a graph or body: one less, one more, another name, another order."""
    graph = pick(rng, graphs(model))
    ports = graph.input if rng.random() < 0.5 else graph.output
    kind = rng.randrange(4)
    if kind == 0 and ports:
        del ports[rng.randrange(len(ports))]
    elif kind == 1:
        ports.add().CopyFrom(pick(rng, infos(model)))
    elif kind == 2:
        pick(rng, ports).name = pick(rng, [*all_names(model), "", "unknown"])
    else:
        order = [copied(p) for p in ports]
        rng.shuffle(order)
        del ports[:]
        ports.extend(order)


# attributes -----------------------------------------------------------------------------------------------------


def change_numbers(model, rng, seeds):
    a = pick(rng, (a for a in attributes(model) if a.HasField("i") or a.HasField("f") or a.ints or a.floats))
    if a.HasField("i"):
        a.i = rng.choice(INTS)
    elif a.HasField("f"):
        a.f = rng.choice(FLOATS)
    elif a.ints:
        a.ints[rng.randrange(len(a.ints))] = rng.choice(INTS)
    else:
        a.floats[rng.randrange(len(a.floats))] = rng.choice(FLOATS)


def change_length(model, rng, seeds):
    a = pick(rng, (a for a in attributes(model) if a.ints or a.floats or a.strings))
    items = a.ints or a.floats or a.strings
    if rng.random() < 0.5:
        del items[rng.randrange(len(items)) :]
    else:
        items.extend([items[0]] * rng.choice((1, 2, 5, 100)))


def change_text(model, rng, seeds):
    a = pick(rng, (a for a in attributes(model) if a.HasField("s") or a.strings))
    text = rng.choice((*(t.encode() for t in TEXTS), b"\xff\xfe"))
    if a.HasField("s"):
        a.s = text
    else:
        a.strings[rng.randrange(len(a.strings))] = text


def change_attribute_type(model, rng, seeds):
    pick(rng, attributes(model)).type = rng.choice(list(AttributeProto.AttributeType.values()))


def remove_attribute(model, rng, seeds):
    node = pick(rng, (n for n in nodes(model) if n.attribute))
    del node.attribute[rng.randrange(len(node.attribute))]


def borrow_attribute(model, rng, seeds):
    source = model if rng.random() < 0.5 else donor(rng, seeds)
    chosen = copied(pick(rng, attributes(source)))
    pick(rng, nodes(model)).attribute.append(chosen)


def new_attribute(model, rng, seeds):
    import onnx.defs

    node = pick(rng, nodes(model))
    try:
        known = list(onnx.defs.get_schema(node.op_type, domain=node.domain).attributes.values())
    except onnx.defs.SchemaError as error:
        raise NothingToChangeError from error
    schema = pick(rng, known)
    a = node.attribute.add(name=schema.name, type=schema.type.value)
    if schema.type.name == "INT":
        a.i = rng.choice(INTS)
    elif schema.type.name == "FLOAT":
        a.f = rng.choice(FLOATS)
    elif schema.type.name == "INTS":
        a.ints.extend(rng.choice(INTS) for _ in range(rng.randrange(5)))
    elif schema.type.name == "FLOATS":
        a.floats.extend(rng.choice(FLOATS) for _ in range(rng.randrange(5)))
    elif schema.type.name == "STRING":
        a.s = rng.choice(TEXTS).encode()


def refer(model, rng, seeds):
    a = pick(rng, attributes(model))
    a.ref_attr_name = rng.choice(("axis", "alpha", a.name, "missing"))


def rename_attribute(model, rng, seeds):
    pick(rng, attributes(model)).name = pick(rng, [*TEXTS, *(a.name for a in attributes(model))])


# types and tensors ----------------------------------------------------------------------------------------------


def tensor_type(info: onnx.ValueInfoProto):
    if info.type.WhichOneof("value") != "tensor_type":
        raise NothingToChangeError
    return info.type.tensor_type


def change_dtype(model, rng, seeds):
    found = rng.choice((*TensorProto.DataType.values(), 99, -1))
    if rng.random() < 0.6:
        tensor_type(pick(rng, infos(model))).elem_type = found
    else:
        pick(rng, tensors(model)).data_type = found


def change_sizes(model, rng, seeds):
    shape = tensor_type(pick(rng, infos(model))).shape
    kind = rng.randrange(5)
    if kind == 0 and shape.dim:
        pick(rng, shape.dim).dim_value = rng.choice(SIZES)
    elif kind == 1 and shape.dim:
        pick(rng, shape.dim).dim_param = rng.choice(("n", "batch", "n + 1", "2*n", "", "x.0", "…"))
    elif kind == 2 and shape.dim:
        del shape.dim[rng.randrange(len(shape.dim))]
    elif kind == 3:
        for _ in range(rng.choice((1, 1, 2, 40))):
            shape.dim.add().dim_value = rng.choice((1, 1, 2, 3))
    else:
        for d in shape.dim:
            d.Clear()


def change_type(model, rng, seeds):
    info = pick(rng, infos(model))
    kind = rng.randrange(6)
    old = copied(info.type)
    if kind == 0:
        info.ClearField("type")
    elif kind == 1:
        info.type.sequence_type.elem_type.CopyFrom(old)
    elif kind == 2:
        info.type.optional_type.elem_type.CopyFrom(old)
    elif kind == 3:
        info.type.map_type.key_type = TensorProto.INT64
        info.type.map_type.value_type.CopyFrom(old)
    elif kind == 4 and old.HasField("tensor_type"):
        info.type.tensor_type.ClearField("shape")
    else:
        for _ in range(rng.choice((2, 20))):
            inner = copied(info.type)
            info.type.sequence_type.elem_type.CopyFrom(inner)


def change_tensor_sizes(model, rng, seeds):
    tensor = pick(rng, tensors(model))
    if tensor.dims and rng.random() < 0.6:
        tensor.dims[rng.randrange(len(tensor.dims))] = rng.choice(SIZES)
    elif tensor.dims and rng.random() < 0.5:
        del tensor.dims[rng.randrange(len(tensor.dims))]
    else:
        tensor.dims.extend([rng.choice((1, 1, 2))] * rng.choice((1, 2, 40)))


def change_tensor_content(model, rng, seeds):
    tensor = pick(rng, tensors(model))
    if tensor.raw_data:
        raw = bytearray(tensor.raw_data)
        for _ in range(rng.choice((1, 1, 8))):
            raw[rng.randrange(len(raw))] = rng.choice((0, 1, 127, 128, 255, rng.randrange(256)))
        tensor.raw_data = bytes(raw)
        return
    for field, values in (("int64_data", INTS), ("float_data", FLOATS), ("int32_data", (0, 1, -1, 255, 2**31 - 1))):
        data = getattr(tensor, field)
        if data:
            data[rng.randrange(len(data))] = rng.choice(values)
            return
    raise NothingToChangeError


def cut_tensor(model, rng, seeds):
    tensor = pick(rng, tensors(model))
    if tensor.raw_data:
        tensor.raw_data = tensor.raw_data[: rng.randrange(len(tensor.raw_data))] + bytes(rng.choice((0, 1, 100)))
    elif tensor.int64_data:
        del tensor.int64_data[rng.randrange(len(tensor.int64_data)) :]
    elif tensor.float_data:
        tensor.float_data.append(1.0)
    else:
        tensor.raw_data = b"12345678"


def make_external(model, rng, seeds):
    tensor = pick(rng, tensors(model))
    tensor.data_location = TensorProto.EXTERNAL
    if rng.random() < 0.7:
        tensor.ClearField("raw_data")
    for key, values in {
        "location": ("/etc/passwd", "../x", "w.bin", "", "/dev/zero", "a\0b"),
        "offset": ("0", "-1", "99999999999999999999999", "x"),
        "length": ("4", "-4", "0"),
    }.items():
        if rng.random() < 0.8:
            tensor.external_data.add(key=key, value=rng.choice(values))


def remove_initializer(model, rng, seeds):
    graph = pick(rng, (g for g in graphs(model) if g.initializer))
    del graph.initializer[rng.randrange(len(graph.initializer))]


def duplicate_initializer(model, rng, seeds):
    graph = pick(rng, (g for g in graphs(model) if g.initializer))
    graph.initializer.add().CopyFrom(graph.initializer[0])


def input_to_initializer(model, rng, seeds):
    """A constant in place of an input, often with content that makes no sense there."""
    info = pick(rng, model.graph.input)
    kind = tensor_type(info)
    count = 1
    dims = []
    for d in kind.shape.dim:
        size = d.dim_value if 0 < d.dim_value < 64 else 2
        dims.append(size)
        count *= size
    if count > 4096:
        raise NothingToChangeError
    tensor = model.graph.initializer.add(name=info.name, data_type=kind.elem_type, dims=dims)
    if kind.elem_type == TensorProto.INT64:
        tensor.int64_data.extend(rng.choice(INTS) for _ in range(count))
    elif kind.elem_type == TensorProto.FLOAT:
        tensor.float_data.extend(rng.choice(FLOATS) for _ in range(count))
    elif kind.elem_type == TensorProto.BOOL:
        tensor.int32_data.extend(rng.choice((0, 1)) for _ in range(count))
    else:
        raise NothingToChangeError
    model.graph.input.remove(info)


def make_sparse(model, rng, seeds):
    graph = pick(rng, (g for g in graphs(model) if g.initializer))
    sparse = graph.sparse_initializer.add()
    sparse.values.CopyFrom(graph.initializer[0])
    sparse.indices.data_type = TensorProto.INT64
    sparse.indices.dims.append(2)
    sparse.indices.int64_data.extend((0, rng.choice(INTS)))
    sparse.dims.extend(rng.choice(SIZES) for _ in range(rng.randrange(4)))
    if rng.random() < 0.7:
        del graph.initializer[0]


# the model's head and functions ---------------------------------------------------------------------------------


def change_opset(model, rng, seeds):
    if model.opset_import and rng.random() < 0.8:
        pick(rng, model.opset_import).version = rng.choice((*range(1, 29), 0, -1, 10**6, 2**62))
    elif model.opset_import and rng.random() < 0.5:
        del model.opset_import[0]
    else:
        model.opset_import.add(domain=rng.choice(DOMAINS), version=rng.choice((1, 2, 17)))


def change_ir_version(model, rng, seeds):
    model.ir_version = rng.choice((0, 1, 2, 3, 7, 13, 14, 15, -1, 2**60))


def outline(model, rng, seeds):
    """Move nodes into a model-local function that the main graph calls, now and then recursively."""
    node = pick(rng, model.graph.node)
    name = rng.choice(("Outlined", node.op_type))
    function = model.functions.add(name=name, domain="local")
    function.input.extend(dict.fromkeys(i for i in node.input if i))
    function.output.extend(dict.fromkeys(o for o in node.output if o))
    function.node.add().CopyFrom(node)
    function.opset_import.extend(model.opset_import)
    if rng.random() < 0.3:
        inner = function.node.add(op_type=name, domain="local")
        inner.input.extend(function.input)
        inner.output.append("again")
    inputs, outputs = list(function.input), list(function.output)
    node.Clear()
    node.op_type, node.domain = name, "local"
    node.input.extend(inputs)
    node.output.extend(outputs)
    if rng.random() < 0.8:
        model.opset_import.add(domain="local", version=1)


def change_function(model, rng, seeds):
    function = pick(rng, model.functions)
    kind = rng.randrange(5)
    if kind == 0:
        model.functions.add().CopyFrom(function)
    elif kind == 1:
        function.input.append(pick(rng, [*function.input, "more"]))
    elif kind == 2:
        function.output.append(pick(rng, [*function.output, "more"]))
    elif kind == 3:
        function.attribute.append(rng.choice(("axis", "alpha")))
    else:
        pick(rng, function.node).op_type = function.name
        function.node[0].domain = function.domain


def into_branch(model, rng, seeds):
    """Wrap a node in an If whose branches both hold it."""
    graph = pick(rng, graphs(model))
    at = rng.randrange(len(graph.node)) if len(graph.node) else -1
    if at < 0:
        raise NothingToChangeError
    old = copied(graph.node[at])
    node = graph.node[at]
    node.Clear()
    node.op_type = "If"
    condition = graph.initializer.add(name=f"cond_{rng.randrange(10**6)}", data_type=TensorProto.BOOL)
    condition.int32_data.append(rng.randrange(2))
    node.input.append(condition.name)
    node.output.extend(old.output)
    for branch in ("then_branch", "else_branch"):
        a = node.attribute.add(name=branch, type=AttributeProto.GRAPH)
        a.g.name = branch
        inner = a.g.node.add()
        inner.CopyFrom(old)
        for i, name in enumerate(old.output):
            inner.output[i] = f"{branch}_{name}" if name else ""
            a.g.output.add(name=inner.output[i])


STRUCTURE: tuple[Change, ...] = (
    duplicate_node, remove_node, shuffle_nodes, rename_node, change_operator, misspell_operator, change_domain,
    append_node, rewire, dangle, make_cycle, change_arity, swap_inputs, same_output, change_ports, change_numbers,
    change_length, change_text, change_attribute_type, remove_attribute, borrow_attribute, new_attribute, refer,
    rename_attribute, change_dtype, change_sizes, change_type, change_tensor_sizes, change_tensor_content, cut_tensor,
    make_external, remove_initializer, duplicate_initializer, input_to_initializer, make_sparse, change_opset,
    change_ir_version, outline, change_function, into_branch,
)  # fmt: skip

#: Mutations after which a model often still runs come up more often: what runs is what can crash.
OFTEN: tuple[Change, ...] = (
    change_numbers, change_length, new_attribute, change_sizes, change_dtype, rewire, change_tensor_content,
    input_to_initializer, append_node, change_operator, swap_inputs, change_opset, into_branch, outline,
)  # fmt: skip


def mutant(seeds: Sequence[bytes], seed: int, index: int) -> tuple[bytes, list[str]]:
    """A mutated model and the names of the mutations that made it.

    Args:
        seeds: Serialised models to start from.
        seed: Number of the campaign.
        index: Number of the mutant in it.
    """
    rng = random.Random(f"{seed}/{index}")
    which = rng.randrange(len(seeds))
    applied = [f"seed {which}"]
    data = seeds[which]
    if rng.random() < 0.8:
        model = onnx.ModelProto.FromString(data)
        for _ in range(rng.choice((1, 1, 1, 2, 3))):
            for _ in range(8):
                change = rng.choice(OFTEN if rng.random() < 0.5 else STRUCTURE)
                try:
                    change(model, rng, seeds)
                except (NothingToChangeError, IndexError):
                    continue
                applied.append(change.__name__)
                break
        data = model.SerializeToString()
    if rng.random() < 0.2 or len(applied) == 1:
        raw = bytearray(data or b"\0")
        change = rng.choice(BYTES)
        change(raw, rng, rng.choice(seeds))
        applied.append(change.__name__)
        data = bytes(raw)
    return data, applied
