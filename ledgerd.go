// Package ledgerd holds the contract of the service, api.yaml, so that the program and its tests can carry it with them.
package ledgerd

import _ "embed"

// OpenAPI is the text of api.yaml, the OpenAPI 3.1 description that the HTTP interface keeps to. It is not to be changed.
//
//go:embed api.yaml
var OpenAPI []byte
