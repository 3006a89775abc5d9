"""The stateful bridge between agents of foreign formats and the bus (docs/adapters/)."""
