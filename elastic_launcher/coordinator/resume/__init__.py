"""What a job goes on from: checkpoints, and the processes that an earlier launcher has left."""
