"""The coordinator's I/O but for its API: engine, store, files of nodes, signals, the target size."""
