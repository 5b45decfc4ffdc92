"""Runs an ES module of ``web/`` in the Node that Playwright brings along: for modules that need no page."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from playwright._impl._driver import compute_driver_executable

WEB = Path(__file__).resolve().parents[2] / "web"


def run_node(script: str, value: Any) -> Any:
    """What ``script`` (the body of an async function of ``input`` and ``web``, a URL) returns, as JSON."""
    node = compute_driver_executable()[0]
    body = (
        'import { readFileSync } from "node:fs";\n'
        'const input = JSON.parse(readFileSync(0, "utf8"));\n'
        f"const web = {json.dumps(WEB.as_uri() + '/')};\n"
        f"const run = async () => {{ {script} }};\n"
        # Timers that the script leaves behind would keep Node waiting.
        "process.stdout.write(JSON.stringify((await run()) ?? null), () => process.exit(0));\n"
    )
    command = [str(node), "--no-warnings", "--input-type=module", "--eval", body]
    done = subprocess.run(command, input=json.dumps(value), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
