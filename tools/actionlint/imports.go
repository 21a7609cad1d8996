// What is built from here, for `go mod tidy`.
//go:build tools

package tools

import _ "github.com/rhysd/actionlint/cmd/actionlint"
