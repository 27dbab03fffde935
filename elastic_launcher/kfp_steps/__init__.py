"""What the bodies of the Kubeflow components call inside their steps; nothing here needs kfp."""
