"""Settings of the whole suite."""

from hypothesis import settings

# A shared machine stalls for half a second at times: how long an example takes says nothing about the code.
settings.register_profile("aghbus", deadline=None)
settings.load_profile("aghbus")
