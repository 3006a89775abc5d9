"""Settings of the whole suite."""

import signal

from hypothesis import settings

from tests.support.nursery import NURSERY

# A shared machine stalls for half a second at times: how long an example takes says nothing about the code.
# So many examples find what they find over the days; `--hypothesis-profile thorough` (make test-long) looks harder at once.
settings.register_profile("aghbus", deadline=None, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=400)
settings.load_profile("aghbus")

# Who starts the suite in the background of a script (`make test &`) hands it SIGINT ignored, which every process that a test
# starts and interrupts would inherit.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

NURSERY.opened = True
