"""What is below a folder, to compare before and after."""

from pathlib import Path


def tree(root: Path) -> dict[str, tuple[str, str]]:
    """Everything below a folder: kind and content, hidden files included."""
    seen: dict[str, tuple[str, str]] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_symlink():
            seen[name] = ("link", str(path.readlink()))
        else:
            seen[name] = ("folder", "") if path.is_dir() else ("file", path.read_text("utf-8"))
    return seen
