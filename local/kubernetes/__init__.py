"""One EKS cluster's Kubernetes, kept in memory: objects are stored and checked, containers are not run (Ray's are: `local.ray`)."""
