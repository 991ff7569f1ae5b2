package main

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

//go:generate go test . -run ^TestManualIsTheConfiguration$ -update

var update = flag.Bool("update", false, "write docs/configuration.md")

const manual = "../../docs/configuration.md"

// docs/configuration.md is made from the comments of Config.
func TestManualIsTheConfiguration(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "config.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Configuration\n\n<!-- Made from the comments in cmd/ledgerd/config.go; make generate writes it. -->\n\n" +
		"`ledgerd serve` is configured with environment variables. Each has a flag of the same name, which goes before it. What is\n" +
		"wrong is said at start, all of it at once, and the service ends with exit code 2. The configuration in use is logged at\n" +
		"start, without secrets.\n")
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || spec.Name.Name != "Config" {
			return true
		}
		for _, field := range spec.Type.(*ast.StructType).Fields.List {
			writeField(t, &b, field)
		}
		return false
	})
	if *update {
		if err := os.WriteFile(manual, []byte(b.String()), 0o644); err != nil { // #nosec G306: a page to read
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	if string(have) != b.String() {
		t.Errorf("%s is not what the comments of Config say; run: make generate", manual)
	}
}

func writeField(t *testing.T, b *strings.Builder, field *ast.Field) {
	t.Helper()
	text, err := strconv.Unquote(field.Tag.Value)
	if err != nil {
		t.Fatal(err)
	}
	tag := reflect.StructTag(text)
	name, env := tag.Get("name"), tag.Get("env")
	if want := "LEDGERD_" + strings.ToUpper(strings.ReplaceAll(name, "-", "_")); env != want || tag.Get("help") == "" {
		t.Errorf("the field %s has the variable %s, not %s, or no help", field.Names[0].Name, env, want)
	}
	if field.Doc == nil {
		t.Fatalf("the field %s has no comment", field.Names[0].Name)
	}
	standard := "required"
	if value, ok := tag.Lookup("default"); ok {
		standard = "default `" + value + "`"
	}
	fmt.Fprintf(b, "\n## %s\n\n`--%s`, %s.\n\n%s", env, name, standard, field.Doc.Text())
}
