"""``build.py serve``: the address first, then the work."""

from __future__ import annotations

import argparse
import socket
from pathlib import Path

import pytest

from pyapp.errors import BadArgument
from pyapp.setup import serve


def test_a_taken_port_is_told_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(serve, "build_site", lambda root: pytest.fail("the site was built"))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        options = argparse.Namespace(host="127.0.0.1", port=taken.getsockname()[1])
        with pytest.raises(BadArgument, match=f"Port {options.port} on 127.0.0.1 cannot be taken"):
            serve.run(options, tmp_path)
    assert capsys.readouterr().out == ""
