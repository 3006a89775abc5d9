"""The pictures of the console in the docs: they are drawn from the page as it is."""

import subprocess
import sys
from pathlib import Path

from tests.support.draw_console import DIGEST, PICTURES
from tests.support.tools import require_tool

ROOT = Path(__file__).parents[3]


def test_the_pictures_of_the_docs_are_drawn_and_not_out_of_date(tmp_path: Path) -> None:
    require_tool("chromium")
    command = [sys.executable, "-m", "tests.support.draw_console", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=110)
    for name in PICTURES:
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
        assert (ROOT / "docs" / "img" / name).read_bytes().startswith(b"\x89PNG")
    drawn = (ROOT / "docs" / "img" / DIGEST).read_text()
    assert drawn == (tmp_path / DIGEST).read_text(), "the page has changed: run `make pictures`, and look at them"
