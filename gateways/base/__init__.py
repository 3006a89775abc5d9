"""What gateways share: metrics, and what doctor says about works that one has left."""
