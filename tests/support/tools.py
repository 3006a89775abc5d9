"""Programs of other projects that some tests need."""

import os
import shutil

import pytest


def require_tool(name: str) -> str:
    """The path of the program called `name`. Without it the test is skipped; where `CI=true`, it fails."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} is not installed"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}, and nothing may be skipped here")
        pytest.skip(reason)
    return found
