"""One machine's processes, locks, files and retries: small helpers that several rooms need."""
