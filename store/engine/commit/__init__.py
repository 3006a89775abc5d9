"""Transactions: the queue of jobs, the transaction that they share, where its COMMIT runs, the ledger of commits, the watermark."""
