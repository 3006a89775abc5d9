"""What the store keeps in memory of its tables: the inbox, the latest events, flows of ours, trust rules, recent values."""
