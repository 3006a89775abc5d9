"""What the store keeps in memory of its tables: the inbox, the latest events, streams of ours, trust rules, recent values."""
