"""ONNX files as a source of models."""

from __future__ import annotations

import logging
from typing import cast

from hookscope.files.hashes import BackgroundHash
from hookscope.sources.loaded import LoadedModel, LoadRequest, WeightsInfo
from hookscope.sources.onnx.file_tensors import hash_of
from hookscope.sources.onnx.graph import Graph, find_calls
from hookscope.sources.onnx.graph_modules import GraphPart, GraphProgram
from hookscope.sources.onnx.graph_reader import read_graph
from hookscope.sources.onnx.input_contract import GraphContract
from hookscope.sources.onnx.model_file import import_onnxruntime, read_file
from hookscope.sources.onnx.module_tree import absent_modules, build_modules, cut_modules
from hookscope.sources.onnx.session import GraphSession
from hookscope.sources.onnx.value_shapes import ValueShapes
from hookscope.specs.model_spec import ONNX

log = logging.getLogger("hookscope")


def load(request: LoadRequest) -> LoadedModel:
    """Open an ONNX file."""
    spec, meta = request.spec, request.meta
    request.refuse_building("an ONNX file")
    file = read_file(spec.path)
    file_hash = None if meta else BackgroundHash(hash_of, spec.path, file.data_files)
    if not meta:
        import_onnxruntime()
    read = read_graph(file)
    module = build_modules(file, read.graph, "meta" if meta else "cpu")
    contract = GraphContract(file.inputs, _table_rows(read.graph), spec.text)
    present = {name for name, _ in module.named_modules()}
    absent = absent_modules(read.graph, file.metadata, present) if read.has_modules else {}
    for name, reason in cut_modules(absent).items():
        if name in present:
            part = cast(GraphPart, module.get_submodule(name))
            part._onnx_cut = part._hookscope_note = reason
    module._onnx_program = GraphProgram(
        read.graph,
        find_calls(read.graph, in_order=read.in_order),
        contract,
        GraphSession(file, read.graph, request.model.onnx_optimize or "none"),
        ValueShapes(file),
        absent,
    )
    log.info("weights: as saved in %s", spec.path)
    only = contract.only_input
    return LoadedModel(
        module=module.eval(),
        spec=spec.text,
        name=spec.name,
        source=ONNX,
        weights=WeightsInfo("as saved", file_hash),
        shape=contract.shape_of(only) if only is not None else None,
        own_example=None if only is not None else lambda: contract.example(0),
        example_text="noise for numbers, indices for tables and otherwise ones",
        example_spec="noise",
        packages=("onnx", "onnxruntime"),
    )


def _table_rows(graph: Graph) -> dict[str, int]:
    """For each input that holds indices of the rows of a table in the file, how many it has."""
    rows: dict[str, int] = {}
    for node in graph.nodes:
        if node.op == "Gather" and len(node.inputs) == 2 and node.inputs[1] in graph.inputs:
            table = graph.initializers.get(node.inputs[0])
            if table is not None and table.shape:
                rows[node.inputs[1]] = min(table.shape[0], rows.get(node.inputs[1], table.shape[0]))
    return rows
