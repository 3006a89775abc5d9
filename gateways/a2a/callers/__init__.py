"""Who calls the gateway."""
