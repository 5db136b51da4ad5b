"""Floating-point operations of traced TensorFlow functions, as far as they are matrix products and convolutions."""

import re
from collections import Counter
from math import prod
from typing import Any, NamedTuple

import tensorflow as tf
from tqdm import tqdm


class Flops(NamedTuple):
    """Floating-point operations of one call; a multiplication and the addition of its result are two.

    Attributes:
        by_op: FLOPs of each type of operation, as "MatMul".
        uncounted: What they lack, one sentence for each operation.
    """

    by_op: dict[str, int]
    uncounted: tuple[str, ...]

    @property
    def total(self) -> int:
        """FLOPs of all of them."""
        return sum(self.by_op.values())


def count(concrete_function) -> Flops:
    """Counts what one call of a traced function computes.

    Zeros that a convolution pads with count like all other elements. Of the branches of a condition the larger one counts. What
    nobody uses doesn't count, as TensorFlow doesn't compute it: a called function may have more results than its caller takes.
    A graph holds each local replica of a MirroredStrategy; of a TPUStrategy's only one, for all.

    Args:
        concrete_function: From `tf.function(...).get_concrete_function(...)`, whose products have static shapes.

    Returns:
        The FLOPs and what they lack: loops, as the number of their passes is unknown, and products of other types.

    Raises:
        ValueError: If a dimension of a product is unknown.
    """
    graph = concrete_function.graph.as_graph_def(add_shapes=True)
    shapes = {node.name: node.attr["_output_shapes"].list.shape for node in graph.node}
    body = _Body({node.name: node for node in graph.node}, shapes, [output.name for output in concrete_function.outputs])
    return _Program(graph).count(body, range(len(body.results)))


def describe(total) -> str:
    """FLOPs with a unit: "1.23 TFLOP"."""
    text = tqdm.format_sizeof(total)
    number = text.rstrip("kMGTPEZY")
    return f"{number} {text[len(number) :]}FLOP"


class _Body(NamedTuple):
    """A graph or a function.

    Attributes:
        nodes: By name.
        shapes: Of the results of each node, and of each argument, by name.
        results: References to tensors: "name", "name:1", "name:product:0".
    """

    nodes: dict[str, Any]
    shapes: dict[str, Any]
    results: list[str]


def _matrix_product(node, inputs, output):
    is_transposed = node.attr["transpose_a"].b or node.attr["adj_x"].b
    return 2 * prod(output()) * inputs(0)[-2 if is_transposed else -1]


def _einsum(node, inputs, output):
    """Every combination of the indices; an index of one operand alone that is summed over, is so before the product."""
    operands, result = node.attr["equation"].s.decode().split("->")
    if "," not in operands:
        return 0
    first, second = (_indices(term, inputs(i)) for i, term in enumerate(operands.split(",")))
    kept = first.keys() & second.keys() | _indices(result, output()).keys()
    return 2 * prod(max(first.get(index, 1), second.get(index, 1)) for index in kept)


def _indices(term, shape):
    """Size of each index; those that an ellipsis stands for are -1, -2, ..., the last one first."""
    before, ellipsis, after = term.partition("...")
    implied = len(shape) - len(before) - len(after)
    return dict(zip([*before, *(range(-implied, 0) if ellipsis else ()), *after], shape, strict=True))


# Kernels are [height, width, input channels of a group, output channels]; those of depthwise convolutions [height, width, input
# channels, output channels of each]. Gradients compute as many products as the convolution itself.
def _convolution(node, inputs, output, dimensions=3):
    return 2 * prod(output()) * prod(inputs(1)[:dimensions])


def _gradient_of_images(node, inputs, output, dimensions=3):
    return 2 * prod(inputs(2)) * prod(inputs(1)[:dimensions])


def _gradient_of_kernel(node, inputs, output, dimensions=3):
    return 2 * prod(inputs(2)) * prod(output()[:dimensions])


def _depthwise(formula):
    return lambda node, inputs, output: formula(node, inputs, output, dimensions=2)


FORMULAS = {
    **dict.fromkeys(("MatMul", "SparseMatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matrix_product),
    "Einsum": _einsum,
    "Conv2D": _convolution,
    **dict.fromkeys(("Conv2DBackpropInput", "Conv2DBackpropInputV2"), _gradient_of_images),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv2DBackpropFilterV2"), _gradient_of_kernel),
    "DepthwiseConv2dNative": _depthwise(_convolution),
    "DepthwiseConv2dNativeBackpropInput": _depthwise(_gradient_of_images),
    "DepthwiseConv2dNativeBackpropFilter": _depthwise(_gradient_of_kernel),
}
# Other products, and operations that may hold any.
OTHER_PRODUCTS = re.compile("MatMul|Einsum|Conv(?!ert)|Dot|RNN|LSTM|GRU|PyFunc|XlaCallModule|XlaCustomCall")
NOTHING = Flops({}, ())
# What calls one function, or one of several, once.
CALLS = {"PartitionedCall", "StatefulPartitionedCall", "If", "StatelessIf", "Case", "StatelessCase"}


class _Program:
    """A graph and the functions that it calls."""

    def __init__(self, graph):
        self._functions = {function.signature.name: function for function in graph.library.function}
        self._definitions = _op_definitions(graph)
        self._counted = {}

    def count(self, body, results):
        """FLOPs of a body of which only some results, given by index, are used."""
        by_op, uncounted = Counter(), {}
        used = self._used(body, results)
        for node in body.nodes.values():
            found = self._count_node(node, body, used[node.name]) if node.name in used else NOTHING
            by_op.update(found.by_op)
            uncounted.update(dict.fromkeys(found.uncounted))
        return Flops(dict(by_op), tuple(uncounted))

    def _used(self, body, results):
        """Nodes that are computed, each with the indices of its results that are used."""
        used = {}
        stack = [self._tensor(body, body.results[index]) for index in results]
        stack += [(node.name, None) for node in body.nodes.values() if self._definitions[node.op].is_stateful]
        while stack:
            name, index = stack.pop()
            if name not in body.nodes:
                continue  # An argument.
            if name not in used:
                used[name] = set()
                stack += [self._tensor(body, reference) for reference in body.nodes[name].input]
            if index is not None:
                used[name].add(index)
        return used

    def _tensor(self, body, reference):
        """Node and index of its result; no index for "^name", which the node only follows."""
        if reference.startswith("^"):
            return reference[1:], None
        name, *place = reference.split(":")
        index = int(place[-1]) if place else 0
        if len(place) == 2:
            index += _first_index(body.nodes[name], self._definitions[body.nodes[name].op], place[0])
        return name, index

    def _count_node(self, node, body, used):
        def shape(name, index):
            known = body.shapes.get(name, ())
            found = tf.TensorShape(known[index] if index < len(known) else None)
            if not found.is_fully_defined():
                raise ValueError(
                    f"{node.op} {node.name!r}: result {index} of {name!r} has the shape {found}; FLOPs can be counted only "
                    "where every dimension is known: trace the function for tensors of static shapes, batch included"
                )
            return found.as_list()

        if node.op in FORMULAS:
            inputs = [reference for reference in node.input if not reference.startswith("^")]
            flops = FORMULAS[node.op](node, lambda i: shape(*self._tensor(body, inputs[i])), lambda: shape(node.name, 0))
            return Flops({node.op: flops}, ())
        if OTHER_PRODUCTS.search(node.op):
            return Flops({}, (f"{node.op} {node.name!r} is not counted",))
        return self._count_called(node, used)

    def _count_called(self, node, used):
        names = [function.name for value in node.attr.values() for function in (value.func, *value.list.func) if function.name]
        if not names:
            return NOTHING
        found = [self._count_function(name, used if node.op in CALLS else None) for name in names]
        uncounted = tuple(sentence for flops in found for sentence in flops.uncounted)
        if node.op in CALLS:
            return Flops(max(found, key=lambda flops: flops.total).by_op, uncounted)
        once = sum(flops.total for flops in found)
        if once:
            uncounted += (f"{node.op} {node.name!r} makes an unknown number of passes, of {describe(once)} each",)
        return Flops({}, uncounted)

    def _count_function(self, name, used):
        """FLOPs of a function; all its results are used if `used` is None."""
        function = self._functions[name]
        results = frozenset(range(len(function.signature.output_arg)) if used is None else used)
        if (name, results) not in self._counted:
            shapes = {node.name: node.attr["_output_shapes"].list.shape for node in function.node_def}
            # TensorFlow may know none of them; their shapes are unknown then.
            of_arguments = function.attr["_input_shapes"].list.shape
            shapes.update({a.name: [shape] for a, shape in zip(function.signature.input_arg, of_arguments, strict=False)})
            returned = [function.ret[output.name] for output in function.signature.output_arg]
            body = _Body({node.name: node for node in function.node_def}, shapes, returned)
            self._counted[name, results] = self.count(body, results)
        return self._counted[name, results]


def _first_index(node, definition, result):
    """Index of the first tensor of a named result, as a function's references count from there."""
    index = 0
    for output in definition.output_arg:
        if output.name == result:
            return index
        number = node.attr[output.number_attr].i if output.number_attr else 1
        index += len(node.attr[output.type_list_attr].list.type) if output.type_list_attr else number
    raise ValueError(f"{node.op} {node.name!r} has no result {result!r}")


def _op_definitions(graph):
    """TensorFlow's definition of each type of operation in a graph and its functions."""
    ops = {node.op for nodes in (graph.node, *(f.node_def for f in graph.library.function)) for node in nodes}
    # The public way to a definition without an operation: TensorFlow writes those of all nodes into a MetaGraphDef. One flat
    # graph, because it doesn't look into branches and loops.
    flat = tf.compat.v1.GraphDef(node=[tf.compat.v1.NodeDef(name=op, op=op) for op in ops])
    meta = tf.compat.v1.train.export_meta_graph(graph=tf.Graph(), graph_def=flat)
    return {definition.name: definition for definition in meta.meta_info_def.stripped_op_list.op}
