"""The four other envelope formats, as pure translation into envelopes of the bus and back."""
