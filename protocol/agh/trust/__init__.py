"""Trust profile `agh-network.trust.ed25519-jcs/v1`: keys, signatures, local policy (spec section 8)."""
