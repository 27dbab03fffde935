"""What is wrong with the pods of steps: containers, patches, GPUs, labels."""
