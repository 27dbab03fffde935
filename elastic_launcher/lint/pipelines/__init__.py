"""What is wrong with compiled Kubeflow pipelines."""
