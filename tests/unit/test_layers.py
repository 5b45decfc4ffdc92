"""Imports point downward only, and what belongs to one layer stays in it: read from the syntax trees of ``pyapp``."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYAPP = ROOT / "pyapp"

GROUND = ("gpu", "weights", "text", "vision")
# Higher numbers may import lower ones.
RANKS = {
    **dict.fromkeys(GROUND, 0),
    "compiler": 1,
    "models": 2,
    "engine": 3,
    "routing": 4,
    "door": 5,
    "client": 6,
    "worker": 7,
    "bench": 7,
}
FREE = {"errors", "timeline", ""}  # for everybody; the last is the package itself with its version
# The server side stands apart: what each of its two packages may import besides itself. The gateway shares with routing
# how the stream and a record of telemetry look on the wire, and nothing else.
SERVER_SIDE = {
    "gateway": {"pyapp.routing.wire", "pyapp.routing.sse", "pyapp.routing.telemetry"},
    "setup": {"pyapp.gateway"},
}
# On the machine that serves only; Pyodide has none of them.
SERVER_LIBRARIES = {
    *("starlette", "uvicorn", "prometheus_client", "playwright", "xllamacpp", "hatchling"),
    *("fcntl", "subprocess", "socket"),
}


def layer_of(module: str) -> str:
    """``pyapp.gpu.pool`` -> ``gpu``; ``pyapp.client`` -> ``client``; ``pyapp`` -> the empty string."""
    return module.split(".")[1] if "." in module else ""


def module_of(path: Path) -> str:
    """The dotted name of a file."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(tree: ast.AST, module: str, is_package: bool) -> Iterator[str]:
    """Absolute names of everything that a file imports, anywhere in it, ``from x import y`` as both x and x.y."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)


def is_module(name: str) -> bool:
    path = ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or path.is_dir()


def complaint(module: str, target: str) -> str | None:
    """Why ``module`` may not import ``target`` (both dotted), or None where it may."""
    here, there = layer_of(module), layer_of(target)
    if here == there or there in FREE:
        return None
    if here in SERVER_SIDE:
        allowed = SERVER_SIDE[here]
        fine = any(target == name or target.startswith(f"{name}.") for name in allowed)
        return None if fine else f"{here} may import {sorted(allowed)} only"
    if there in SERVER_SIDE:
        return f"{there} is no part of what runs in the browser"
    if here in FREE:
        return "what everybody imports imports nothing"
    if here == "routing" and there == "engine":
        return "the door joins routing and engine"
    if RANKS[there] > RANKS[here]:
        return f"{there} lies above {here}"
    return f"{here} and {there} do not know each other" if RANKS[there] == RANKS[here] else None


def sources() -> list[Path]:
    return sorted(PYAPP.rglob("*.py"))


def test_every_file_has_a_layer() -> None:
    assert {layer_of(module_of(path)) for path in sources()} <= {*RANKS, *FREE, *SERVER_SIDE}


def test_imports_point_downward() -> None:
    found = set()
    for path in sources():
        module = module_of(path)
        for target in imports(ast.parse(path.read_text(encoding="utf-8")), module, path.name == "__init__.py"):
            if target.split(".")[0] == "pyapp" and is_module(target) and (why := complaint(module, target)):
                found.add(f"{module} imports {target}: {why}")
    assert not found, "\n".join(sorted(found))


def test_browser_code_needs_no_server_library() -> None:
    found = []
    for path in sources():
        module = module_of(path)
        if layer_of(module) not in SERVER_SIDE:
            names = {name.split(".")[0] for name in imports(ast.parse(path.read_text(encoding="utf-8")), module, False)}
            found += [f"{module}: {name}" for name in sorted(names & SERVER_LIBRARIES)]
    assert not found


def test_only_gpu_touches_the_gpu() -> None:
    words = {"createBuffer", "requestAdapter", "requestDevice", "createShaderModule", "createBindGroup"}
    found = []
    for path in sources():
        if layer_of(module_of(path)) != "gpu":
            tree = ast.parse(path.read_text(encoding="utf-8"))
            used = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
            found += [f"{module_of(path)}: {word}" for word in sorted(used & words)]
    assert not found


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("pyapp.gpu.pool", "pyapp.weights.store"),
        ("pyapp.text.chat", "pyapp.models.decoder"),
        ("pyapp.engine.run", "pyapp.routing.router"),
        ("pyapp.routing.router", "pyapp.engine.run"),
        ("pyapp.client", "pyapp.worker"),
        ("pyapp.client", "pyapp.bench.sharing"),
        ("pyapp.bench.sharing", "pyapp.worker"),
        ("pyapp.setup.bench", "pyapp.bench.sharing"),
        ("pyapp.door.device", "pyapp.client"),
        ("pyapp.routing.router", "pyapp.door.events"),
        ("pyapp.errors", "pyapp.text.chat"),
        ("pyapp.client", "pyapp.gateway.app"),
        ("pyapp.engine.run", "pyapp.setup.cache"),
        ("pyapp.gateway.app", "pyapp.text.chat"),
        ("pyapp.setup.site", "pyapp.weights.manifest"),
    ],
)
def test_wrong_imports_are_seen(module: str, target: str) -> None:
    assert complaint(module, target)


@pytest.mark.parametrize(
    ("module", "target"),
    [
        ("pyapp.worker", "pyapp.client"),
        ("pyapp.bench.sharing", "pyapp.engine.engine"),
        ("pyapp.client", "pyapp.door.options"),
        ("pyapp.client", "pyapp.engine.run"),
        ("pyapp.client", "pyapp.routing.router"),
        ("pyapp.door.events", "pyapp.routing.router"),
        ("pyapp.models.decoder", "pyapp.compiler.graph"),
        ("pyapp.engine.run", "pyapp.gpu.pool"),
        ("pyapp.gpu.pool", "pyapp.errors"),
        ("pyapp.gateway.app", "pyapp.routing.wire"),
        ("pyapp.setup.serve", "pyapp.gateway.app"),
    ],
)
def test_right_imports_are_let_through(module: str, target: str) -> None:
    assert complaint(module, target) is None


def test_relative_imports_are_resolved() -> None:
    tree = ast.parse("from ..weights import store\nfrom . import pool\nimport pyapp.text.chat")
    names = set(imports(tree, "pyapp.gpu.lease", False))
    assert {"pyapp.weights.store", "pyapp.gpu.pool", "pyapp.text.chat"} <= names
