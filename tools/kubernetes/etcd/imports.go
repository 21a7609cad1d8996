// What is built from here, for `go mod tidy`: the commands are built by their import paths (tools/kubernetes_binaries.py).
//go:build tools

package tools

import _ "go.etcd.io/etcd/server/v3"
