"""A real Kubernetes on this machine: its control plane as processes of the host, each node in namespaces of its own."""
