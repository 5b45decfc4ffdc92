#!/usr/bin/env python3
"""The one command line of Tandem: ``python3 build.py serve`` and ``python3 build.py test`` need no other step.

This file and ``pyapp.setup.cli`` start on the standard library alone; everything else runs inside ``.venv``, which
the first step makes from ``requirements.lock``. The work itself is in ``pyapp/setup/``, one step a file.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - said here in words, before anything newer is imported
    sys.exit("Tandem needs Python 3.11 or later; this is Python %d.%d." % sys.version_info[:2])  # noqa: UP031

from pyapp.setup.cli import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
