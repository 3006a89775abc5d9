"""The package of this project. Its parts are packages of their own: start with `aghbus.client`."""

from aghbus.host.version import VERSION as __version__

__all__ = ["__version__"]
