"""``dist/``: the whole built site. Each part is made again only when what it is made of has changed.

What was made of what is kept in ``dist/.build.json``: for each part a key (a hash over its inputs) and its files with
their sizes. A part whose key and files still fit is left alone.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from . import models, python_image, runtime, wheel
from .cache import exclusive
from .failure import SetupError
from .files import compressed, write_file
from .progress import in_words

STAMPS = ".build.json"
HERE = Path(__file__).parent
FETCHED = (".wasm", ".zip", ".json", ".image")


def code_key(*modules: str | Path) -> str:
    """A hash over the named files (of this package, where a name has no folder): a part is made anew when the code that
    makes it changes."""
    digest = hashlib.sha256()
    for name in modules:
        digest.update((HERE / name).read_bytes())
    return digest.hexdigest()


class Site:
    """The site while it is being built in ``dist``."""

    def __init__(self, root: Path, dist: Path) -> None:
        self.root, self.dist = root, dist
        try:
            self._stamps: dict[str, Any] = json.loads((dist / STAMPS).read_bytes())
        except (OSError, ValueError):
            self._stamps = {}

    def part(self, name: str, key: str, make: Callable[[], Iterable[Path]]) -> None:
        """Makes a part unless it is there: ``make()`` writes its files and returns them; files it no longer has go."""
        if self._is_fresh(name, key):
            return
        old = self._stamps.pop(name, {}).get("files", {})
        self._save()  # so that a part that is broken off is not taken for the one before
        files = {str(path.relative_to(self.dist)): path.stat().st_size for path in make()}
        others = {path for stamp in self._stamps.values() for path in stamp["files"]}
        for path in old.keys() - files.keys() - others:
            (self.dist / path).unlink(missing_ok=True)
        self._stamps[name] = {"key": key, "files": files}
        self._save()

    def _save(self) -> None:
        write_file(self.dist / STAMPS, json.dumps(self._stamps, indent=1).encode())

    def files(self, name: str) -> list[str]:
        """Paths of a part's files, without gzip twins."""
        return [path for path in self._stamps[name]["files"] if not path.endswith(".gz")]

    def write(self, files: dict[str, bytes]) -> list[Path]:
        """Writes files (path in the site -> bytes), with gzip twins where they pay; returns all that were written."""
        written = []
        for path, data in files.items():
            written.append(write_file(self.dist / path, data))
            if packed := compressed(path, data):
                twin = write_file(self.dist / f"{path}.gz", packed)
                twin.touch()  # a twin older than its file is taken for a leftover
                written.append(twin)
        return written

    def sizes(self) -> dict[str, int]:
        """Bytes of each part, gzip twins not counted."""
        return {
            name: sum(size for path, size in stamp["files"].items() if not path.endswith(".gz"))
            for name, stamp in self._stamps.items()
        }

    def sent(self, prefix: str) -> int:
        """Bytes that a browser which takes gzip gets for all files under ``prefix``."""
        return self._as_sent(path for path in self._all() if path.startswith(prefix) and not path.endswith(".gz"))

    def sent_size(self, path: str) -> int:
        """Bytes of a file that has been written, as it comes to a browser that takes gzip."""
        twin = self.dist / f"{path}.gz"
        return (twin if twin.is_file() else self.dist / path).stat().st_size

    def _all(self) -> dict[str, int]:
        """Every file of the site, twins too -> bytes."""
        return {path: size for stamp in self._stamps.values() for path, size in stamp["files"].items()}

    def _as_sent(self, paths: Iterable[str]) -> int:
        """Bytes of files as they go to a browser that takes gzip."""
        files = self._all()
        return sum(files.get(f"{path}.gz", files[path]) for path in paths)

    def _is_fresh(self, name: str, key: str) -> bool:
        stamp = self._stamps.get(name)
        if not stamp or stamp["key"] != key:
            return False
        for path, size in stamp["files"].items():
            try:
                if (self.dist / path).stat().st_size != size:
                    return False
            except OSError:
                return False
        return True


def web_files(root: Path) -> dict[str, bytes]:
    """``web/`` as it is, and the ``.mjs`` helpers of ``pyapp`` at the top of the site. Raises SetupError on a clash."""
    files = {}
    for path in sorted((root / "web").rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            files[path.relative_to(root / "web").as_posix()] = path.read_bytes()
    for path in sorted(set((root / "pyapp").rglob("*.mjs")) - set((root / "pyapp" / "setup").rglob("*"))):
        if path.name in files:
            raise SetupError(f"Two files want the address /{path.name}: one of them is {path}.")
        files[path.name] = path.read_bytes()
    return files


def _content_key(files: dict[str, bytes]) -> str:
    digest = hashlib.sha256()
    for path, data in files.items():
        digest.update(f"{path} {len(data)}\n".encode())
        digest.update(data)
    return digest.hexdigest()


def build_site(root: Path, dist: Path | None = None) -> Site:
    """Brings ``dist/`` up to date and returns it. Downloads what the cache lacks. Raises SetupError."""
    dist = dist or root / "dist"
    dist.mkdir(parents=True, exist_ok=True)
    with exclusive(f"dist-{dist.resolve()}"):
        site = Site(root, dist)
        common = code_key("files.py")
        site.part("runtime", code_key("runtime.py") + common, lambda: site.write(runtime.runtime_files()))
        model_key = code_key("models.py", "chunks.py", "efficientnet.py", "torch_legacy.py", models.CLASSES)
        for model in models.MODELS:
            site.part(f"model {model.name}", model_key, partial(models.place, model, dist))
        listing = json.dumps(models.index(dist), indent=1).encode()
        site.part("model list", hashlib.sha256(listing).hexdigest(), lambda: site.write({"models/index.json": listing}))
        site.part("python", _python_key(), lambda: site.write(_libraries(dist)))
        (libraries,) = site.files("python")
        wheel_key = f"{wheel.inputs_key(root)}{_python_key()}{code_key(root / python_image.HELPER)}{libraries}"
        site.part("wheel", wheel_key, lambda: _wheel(site, libraries))
        web = web_files(root)
        site.part("web", _content_key(web) + common, lambda: site.write(web))
    return site


def _python_key() -> str:
    return code_key("runtime.py", "python_image.py", python_image.SCRIPT, "files.py")


def _pyodide(dist: Path) -> dict[str, bytes]:
    """Pyodide itself, out of the site: name -> bytes."""
    return {name: (dist / "pyodide" / name).read_bytes() for name in runtime.PYODIDE_FILES}


def _libraries(dist: Path) -> dict[str, bytes]:
    """The libraries from elsewhere as a start without the snapshot takes them."""
    pyodide = _pyodide(dist)
    packages = json.loads(pyodide["pyodide-lock.json"])["packages"]
    names = [packages[name]["file_name"] for name in runtime.IMPORTED]
    image = python_image.compiled(pyodide, {name: (dist / "pyodide" / name).read_bytes() for name in names})
    return {_hashed("pyodide/libraries", image): image}


def _hashed(path: str, data: bytes, kind: str = "image") -> str:
    """A name that never means other bytes: none of these files runs beside another build's."""
    return f"{path}-{hashlib.sha256(data).hexdigest()[:16]}.{kind}"


def _wheel(site: Site, libraries: str) -> list[Path]:
    """Writes the wheel, what a start of Python takes beside Pyodide's own files, and ``index.json``, which names it and
    says how many bytes a start fetches."""
    name, data = wheel.build_wheel(site.root)
    pyodide = _pyodide(site.dist)
    image = python_image.compiled(pyodide, {name: data})
    made = python_image.snapshot(site.root, pyodide, [(site.dist / libraries).read_bytes(), image])
    images = {
        key: _hashed(f"wheels/{key}", each) for key, each in (("snapshot", made.memory), ("modules", made.modules))
    }
    compiled = {path: _hashed(f"wheels/{_stem(path)}", each, "wasm") for path, each in made.libraries.items()}
    tandem = _hashed("wheels/tandem", image)
    start = {images["snapshot"]: made.memory, images["modules"]: made.modules}
    start |= {compiled[path]: each for path, each in made.libraries.items()}
    written = site.write({f"wheels/{name}": data, tandem: image, **start})
    own = [f"pyodide/{each}" for each in runtime.PYODIDE_FILES]
    index = {
        "tandem": name,
        "images": {**images, "libraries": libraries, "tandem": tandem},
        "compiled": [{"path": path, "file": file} for path, file in compiled.items()],
        "layout": made.layout,
        "runtimeBytes": sum((site.dist / path).stat().st_size for path in (*own, *start) if path.endswith(FETCHED)),
        "runtimeDownloadBytes": sum(site.sent_size(path) for path in (*own, *start)),
    }
    return [*written, *site.write({"wheels/index.json": json.dumps(index).encode()})]


def _stem(path: str) -> str:
    """The name of a compiled library without its platform."""
    return Path(path).name.split(".")[0]


def run(options: argparse.Namespace, root: Path) -> int:
    """``build.py build``."""
    started = time.monotonic()
    print_sizes(build_site(root))
    print(f"dist/ is up to date ({time.monotonic() - started:.1f} s).")
    return 0


def print_sizes(site: Site) -> None:
    """What the site ships, part by part, and what a first visit of the page costs."""
    sizes = site.sizes()
    for name, size in sizes.items():
        print(f"  {name:28} {in_words(size):>10}")
    print(f"  {'all of it':28} {in_words(sum(sizes.values())):>10}")
    print(f"  {'Pyodide and wheels, gzipped':28} {in_words(site.sent('pyodide/') + site.sent('wheels/')):>10}")
