"""Other systems on the same work, each its own process. They need the dependency group `bench`."""
