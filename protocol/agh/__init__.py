"""The AGH Network v0: envelopes, bodies, identifiers, lifecycle, receiving, sending, discovery, delivery and trust."""
