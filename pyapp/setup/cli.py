"""The subcommands of ``build.py``. Standard library only: this is read before ``.venv`` exists."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

from pyapp.errors import TandemError

from .environment import ensure_environment
from .failure import SetupError

ROOT = Path(__file__).resolve().parents[2]

# subcommand -> (module of this package that runs it, one line for --help)
COMMANDS = {
    "serve": ("serve", "set everything up, build dist/, and serve it together with the cloud gateway"),
    "build": ("site", "set everything up and build dist/"),
    "test": ("testing", "set up what the tests need, run the checks, then all tests"),
    "bench": ("bench", "run the bench page in a headless browser and print its table"),
    "soak": (
        "soak",
        "drive one page for long: turns, aborts, losses of the GPU, nothing may leak; then visits with faults",
    ),
    "models": ("models", "list the models that can be built in, or fetch them"),
    "check": ("checks", "lint, format and type checks: ruff, ruff format, mypy"),
}


def make_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
        prog="build.py",
        description="Builds, serves and tests Tandem. The first run makes .venv and downloads what is needed into "
        "the user's cache folder (XDG_CACHE_HOME, else ~/.cache, there in tandem/); later runs download nothing.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    made = {name: commands.add_parser(name, help=text, description=text) for name, (_, text) in COMMANDS.items()}

    serve = made["serve"]
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    serve.add_argument("--port", type=int, default=8000, help="port to listen on (default %(default)s; 0: any free)")

    test = made["test"]
    test.add_argument("--no-check", action="store_true", help="leave out the checks, run the tests only")
    test.epilog = "Any other argument goes to pytest: build.py test -k tokenizer -x"

    bench = made["bench"]
    bench.add_argument(
        "which",
        nargs="*",
        help="language, vision, profile, start, sharing, kernels (default: the first two); or gateway",
    )
    bench.add_argument("--adapter", choices=("auto", "software"), default="auto", help="default %(default)s")
    bench.add_argument("--out", type=Path, help="write the rows as JSON to this file too")
    bench.add_argument(
        "--option", action="append", default=[], metavar="NAME=VALUE", type=_assignment,
        help="an option of bench.html's address, such as rounds=2; may be repeated",
    )  # fmt: skip
    bench.add_argument(
        "--rows", type=Path, help="show the rows of this file (JSON, one a line, as the page posted them); run nothing"
    )
    bench.add_argument("--timeout", type=float, default=900.0, help="seconds until it gives up (default %(default)s)")

    for name, number, what in (
        ("seconds", 600.0, "seconds of load"),
        ("streams", 200, "streams at once"),
        ("rate", 25.0, "tokens a second of each stream"),
    ):
        of = f"bench gateway: {what} (default %(default)s)"
        bench.add_argument(f"--{name}", type=type(number), default=number, metavar="N", help=of)

    soak = made["soak"]
    for name, count, what in (
        ("alternations", 500, "photo-then-text rounds"),
        ("aborts", 200, "texts that are aborted at random moments"),
        ("losses", 20, "crashes of the GPU process in the middle of a text"),
        ("tokens", 16, "tokens of each text"),
        ("visits", 500, "visits, each with a client of its own, with faults drawn at random"),
        ("browsers", 1, "how many go on visits side by side"),
        ("seed", 1, "of the moments to abort at and of the faults"),
        ("pool", 900, "budget of the pool, MiB"),
    ):
        soak.add_argument(f"--{name}", type=int, default=count, metavar="N", help=f"{what} (default %(default)s)")
    soak.add_argument("--adapter", choices=("auto", "software"), default="software", help="default %(default)s")
    soak.add_argument("--model", help="a model of the site, or a URL (default: a tiny one of the tests)")
    soak.add_argument("--vision", default="efficientnet-lite0", help="default %(default)s")
    soak.add_argument("--keep", action="store_true", help="write the figures of the visits into docs/results")

    models = made["models"]
    models.add_argument("action", nargs="?", choices=("list", "fetch"), default="list", help="default %(default)s")
    models.add_argument("names", nargs="*", help="models to fetch (default: those that dist/ ships)")

    check = made["check"]
    check.add_argument("--fix", action="store_true", help="let ruff mend and format what it can first")
    return parser


def _assignment(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value


def main(argv: Sequence[str]) -> int:
    """Runs one subcommand; returns the exit status."""
    parser = make_parser()
    options, rest = parser.parse_known_args(argv)
    options.rest = rest
    if rest and options.command != "test":
        parser.error(f"unrecognized arguments: {' '.join(rest)}")
    try:
        ensure_environment(ROOT)
        module, _ = COMMANDS[options.command]
        status: int = import_module(f"pyapp.setup.{module}").run(options, ROOT)
    except (SetupError, TandemError) as error:
        print(f"build.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return status
