"""`aghctl bridge`: agents of foreign formats on standard input and output, or as a command per work (docs/adapters/)."""
