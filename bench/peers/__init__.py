"""Other systems on the same work, each a process of its own. They need the dependency group `bench`."""
