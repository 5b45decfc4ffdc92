"""The embedded llama.cpp server's own process: ``python -m pyapp.gateway.embedded_child``.

It reads one JSON line of options from standard input, writes one JSON line, ``{"url"}`` or ``{"error"}``, and lives
until standard input ends. So it ends with its parent however that dies, and the key is in no argument list.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any


def start(options: dict[str, Any]) -> Any:
    """The running server, on the loopback and a free port.

    ``options``: ``model`` (path of a GGUF), ``context`` (tokens), ``slots``, ``threads``, ``key`` (the bearer's).
    """
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = options["model"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.api_keys = [options["key"]]
    params.n_ctx = options["context"]
    params.n_parallel = options["slots"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options["threads"]
    params.kv_unified = True  # one long conversation may use the whole context while the others are short
    params.ctx_shift = False  # a full context is an error, not a silent loss of the conversation's beginning
    params.cache_ram_mib = 0  # its default keeps up to 8 GiB of past conversations
    params.cache_idle_slots = False  # needs that cache
    params.n_gpu_layers = 0
    params.verbosity = 1
    params.ui = False
    params.endpoint_slots = False  # it would show prompts
    params.endpoint_props = False
    return xllamacpp.Server(params)


def main() -> int:
    options = json.loads(sys.stdin.readline())
    # The answer goes out on a copy: whatever llama.cpp prints on standard output ends in the log instead.
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        server = start(options)
    except Exception as error:
        print(json.dumps({"error": str(error) or type(error).__name__}), file=answer, flush=True)
        return 1
    print(json.dumps({"url": server.listening_address}), file=answer, flush=True)
    answer.close()
    while sys.stdin.read(1024):
        pass
    # No tidy end: requests in flight would delay it, and there is nothing to save.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
