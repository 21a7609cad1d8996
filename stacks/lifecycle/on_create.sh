#!/usr/bin/env bash
# Runs once on every HyperPod node, before it joins. Nothing is downloaded: a node must come up when GitHub does not answer.
# It moves containerd's data from the root volume to the instance group's own volume, where a 20 GB image fits.
set -euo pipefail

log=/var/log/provision/provisioning.log
mkdir -p "$(dirname "$log")"
exec > >(tee -a "$log") 2>&1

volume=/opt/sagemaker
configuration=/etc/eks/containerd/containerd-config.toml

if ! mountpoint -q "$volume"; then
  echo "on_create: $volume is not mounted, containerd stays on the root volume"
  exit 0
fi
if [[ ! -f "$configuration" ]]; then
  echo "on_create: $configuration is not there, containerd stays where it is"
  exit 0
fi

root="$volume/containerd/data-root"
mkdir -p "$root"
# The file is a template that EKS's bootstrap copies: https://github.com/aws/sagemaker-hyperpod-cluster-setup
sed -i -E "s|^root[[:space:]]*=.*|root = \"$root\"|" "$configuration"
grep -q "^root = \"$root\"" "$configuration" || sed -i "1i root = \"$root\"" "$configuration"
echo "on_create: containerd keeps its data in $root"
