"""The names of the foreign formats."""

from typing import Literal

Format = Literal["sentient", "humaninloop", "agentos", "sacp"]
