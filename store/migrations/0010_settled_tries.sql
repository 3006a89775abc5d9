-- Only what is queued or published waits for another try: from here on next_ms goes in the statement that ends the wait.
UPDATE outbox SET next_ms = NULL WHERE next_ms IS NOT NULL AND state NOT IN ('queued', 'published');
