"""The coordinator's I/O except for its API: engine, store, files of nodes, signals, the target size."""
