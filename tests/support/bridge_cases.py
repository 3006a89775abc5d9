"""Daemons for the tests of bridges."""

from __future__ import annotations

OUTPUT = {
    "success": True,
    "summary": "the spec is written",
    "artifacts": [{"path": "spec.md", "operation": "create", "content": "# Spec\n"}],
    "notes": ["mind the tests"],
    "recommendation": "proceed",
}
