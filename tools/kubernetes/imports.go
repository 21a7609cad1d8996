// What is built from here, for `go mod tidy`: the commands are built by their import paths (tools/kubernetes_binaries.py).
//go:build tools

package tools

import (
	_ "github.com/ray-project/kuberay/ray-operator"
	_ "go.etcd.io/etcd/server/v3"
	_ "k8s.io/kubernetes/cmd/kube-apiserver"
	_ "k8s.io/kubernetes/cmd/kube-controller-manager"
	_ "k8s.io/kubernetes/cmd/kube-scheduler"
)
