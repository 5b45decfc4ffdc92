"""The build steps behind ``build.py``: CPython only, never part of the wheel that goes to the browser.

cli.py            the subcommands and their options
environment.py    .venv from requirements.lock
cache.py          the user's cache folder: pinned files, checked before use, never fetched twice
progress.py       one line with stage and bytes
npm.py, pypi.py   how a file is got from a registry
runtime.py        Pyodide, the wasm wheels and PyScript
models.py         the models: where from, what is shipped (torch_legacy.py, efficientnet.py, chunks.py)
wheel.py          our own Python as a wheel
site.py           dist/: all of it together, only what changed
serve.py, browser.py, testing.py, bench.py, checks.py   what the subcommands do with it
"""
