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

	"github.com/alecthomas/kong"
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
	b.WriteString(otherVariables)
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

// otherVariables are those of commands that are not configured with Config.
const otherVariables = `
## Variables of other commands

### LEDGERD_DATA

` + "`--data`" + ` of ` + "`ledgerd dev`" + `, and of migrate, replay, verify and incarnation.

The data folder of ledgerd dev, by default /var/lib/ledgerd for root and
~/.local/share/ledgerd for others. The other commands take the database from
--data, else from --database-url or LEDGERD_DATABASE_URL, else from
LEDGERD_DATA, and have no default. dev takes no URL.

### LEDGERD_PG_BIN

` + "`--pg-bin`" + ` of the same commands.

The folder with initdb and postgres, 15 or newer. By default the newest of
what the system has, or the version that the data folder needs.

### LEDGERD_URL

` + "`--url`" + ` of ` + "`ledgerd import`" + `, default ` + "`http://127.0.0.1:8080`" + `.

The address of the service that the rows are posted to.
`

// Every variable that a command reads is in the manual.
func TestManualNamesEveryVariable(t *testing.T) {
	text, err := os.ReadFile(manual)
	if err != nil {
		t.Fatal(err)
	}
	parser, err := kong.New(&cli{})
	if err != nil {
		t.Fatal(err)
	}
	count := 0
	var visit func(n *kong.Node)
	visit = func(n *kong.Node) {
		for _, flag := range n.Flags {
			for _, name := range flag.Envs {
				count++
				if !strings.Contains(string(text), "# "+name+"\n") {
					t.Errorf("%s does not have %s, the variable of --%s of %s", manual, name, flag.Name, n.FullPath())
				}
			}
		}
		for _, child := range n.Children {
			visit(child)
		}
	}
	visit(parser.Model.Node)
	if count < 20 {
		t.Errorf("only %d variables were found", count)
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
