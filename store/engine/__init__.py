"""SQLite: the file of a store and its connections, transactions (commit), the log (log), and what is kept in memory (memory)."""
