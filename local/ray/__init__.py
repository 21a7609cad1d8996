"""A RayCluster object becomes a real Ray cluster of processes on this machine, each pod with a loopback address of its own."""
