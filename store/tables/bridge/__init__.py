"""Tables of the bridge: foreign messages with their envelopes, works that follow others, logs."""
