#!/bin/sh
# usage: install.sh PREFIX, in the folder of the sources: a virtual environment with the locked libraries and aghbus.
set -eu
python3 -m venv "$1"
set -- "$1/bin/python" -m pip install -q --disable-pip-version-check
"$@" --require-hashes -r requirements/build.txt
"$@" --require-hashes --no-build-isolation -r requirements/run.txt
"$@" --no-deps --no-build-isolation .
