"""Tabs of a real Chromium."""

from collections.abc import Callable

from playwright.sync_api import Page

Tab = Callable[..., Page]
"""Opens a tab on the console of a daemon: `tab(daemon, screen, write=True, width=1280, theme="light")`."""
