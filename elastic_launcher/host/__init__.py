"""One machine's processes, locks, files and retries: small helpers for several packages."""
