"""Our own Python as a wheel for the browser: ``pyapp`` without the server side, with the shaders inside."""

from __future__ import annotations

import hashlib
from pathlib import Path

from .cache import staging
from .failure import SetupError


def wheel_inputs(root: Path) -> list[Path]:
    """Every file whose change makes another wheel."""
    skipped = {root / "pyapp" / "gateway", root / "pyapp" / "setup"}
    files = [p for p in (root / "pyapp").rglob("*.py") if not skipped & set(p.parents)]
    return [*sorted(files), *sorted((root / "shaders").rglob("*.wgsl")), root / "pyproject.toml", root / "LICENSE"]


def inputs_key(root: Path) -> str:
    """A hash over the names and bytes of ``wheel_inputs``."""
    digest = hashlib.sha256()
    for path in wheel_inputs(root):
        data = path.read_bytes()
        digest.update(f"{path.relative_to(root)} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def build_wheel(root: Path) -> tuple[str, bytes]:
    """The wheel's file name and bytes; the same bytes for the same files (hatchling fixes times and order)."""
    # Imported here: an unchanged wheel, the common case of serve, has no need of it.
    from hatchling.builders.wheel import WheelBuilder

    with staging() as stage:
        made = [Path(p) for p in WheelBuilder(str(root)).build(directory=str(stage), versions=["standard"])]
        if len(made) != 1:
            raise SetupError(f"hatchling made {len(made)} wheels where one was expected.")
        return made[0].name, made[0].read_bytes()
