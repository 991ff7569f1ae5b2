// Command gen writes the page of the API from its description.
package main

import (
	"flag"
	"fmt"
	"os"

	"github.com/ledgerd/ledgerd/internal/httpapi/apidoc"
)

func main() {
	in := flag.String("in", "api.yaml", "the OpenAPI description")
	out := flag.String("out", "docs.html", "the page to write")
	flag.Parse()
	if err := run(*in, *out); err != nil {
		fmt.Fprintln(os.Stderr, "gen:", err)
		os.Exit(1)
	}
}

func run(in, out string) error {
	description, err := os.ReadFile(in)
	if err != nil {
		return err
	}
	page, err := apidoc.Render(description)
	if err != nil {
		return err
	}
	return os.WriteFile(out, page, 0o644)
}
