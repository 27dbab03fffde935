"""The bodies of the Kubeflow components, called inside their steps; nothing here needs kfp."""
