"""One training, plain, under DDP, Accelerate and Run:AI's library, and elastic: what ``docs/migrate.md`` compares."""
