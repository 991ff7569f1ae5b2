// Package apidoc makes the page at /docs from api.yaml. It runs when the page
// is generated (go generate) and in the test that proves the committed page
// current; the service only carries the result.
package apidoc

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"strings"

	"github.com/pb33f/go-yaml"
)

//go:embed page.tmpl
var pageTemplate string

// Render returns the HTML page for an OpenAPI 3.1 description in YAML. It
// understands what api.yaml uses and returns an error for a reference that
// leads nowhere. The same description gives the same bytes.
func Render(description []byte) ([]byte, error) {
	var root yaml.Node
	if err := yaml.Unmarshal(description, &root); err != nil {
		return nil, fmt.Errorf("parse the description: %w", err)
	}
	if len(root.Content) != 1 {
		return nil, fmt.Errorf("the description is not one YAML document")
	}
	d := &document{root: node{root.Content[0]}}
	page := d.page()
	if d.err != nil {
		return nil, d.err
	}
	t, err := template.New("page").Parse(pageTemplate)
	if err != nil {
		return nil, fmt.Errorf("parse the template: %w", err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, page); err != nil {
		return nil, fmt.Errorf("fill the template: %w", err)
	}
	return b.Bytes(), nil
}

// The page, as the template reads it.
type (
	page struct {
		Title, Version string
		Description    template.HTML
		Groups         []group
		Schemas        []schema
	}
	group struct {
		Name        string
		Description template.HTML
		Operations  []operation
	}
	operation struct {
		ID, Method, Path, Summary string
		Description               template.HTML
		Parameters                []field
		Body                      []field
		Examples                  []string
		Responses                 []response
	}
	response struct {
		Status      string
		OK          bool
		Description template.HTML
		Content     template.HTML
		Headers     []string
	}
	schema struct {
		Name        string
		Description template.HTML
		Type        template.HTML
		Fields      []field
	}
	// field is a parameter, or a member of a body; Name of a nested member is
	// its path with dots.
	field struct {
		Name, In    string
		Required    bool
		Type        template.HTML
		Description template.HTML
	}
)

// document resolves references and remembers the first that fails.
type document struct {
	root node
	err  error
}

func (d *document) page() page {
	info := d.root.get("info")
	p := page{
		Title:       info.get("title").text(),
		Version:     info.get("version").text(),
		Description: markdown(info.get("description").text()),
	}
	for tag := range d.root.get("tags").items() {
		g := group{Name: tag.get("name").text(), Description: markdown(tag.get("description").text())}
		for path, item := range d.root.get("paths").members() {
			for method, op := range item.members() {
				if op.get("operationId").missing() || op.get("tags").first().text() != g.Name {
					continue
				}
				g.Operations = append(g.Operations, d.operation(strings.ToUpper(method), path, item, op))
			}
		}
		p.Groups = append(p.Groups, g)
	}
	for name, s := range d.root.get("components").get("schemas").members() {
		p.Schemas = append(p.Schemas, schema{
			Name:        name,
			Description: markdown(s.get("description").text()),
			Type:        d.typeOf(s),
			Fields:      d.fields("", s),
		})
	}
	return p
}

func (d *document) operation(method, path string, item, op node) operation {
	o := operation{
		ID: op.get("operationId").text(), Method: method, Path: path,
		Summary:     op.get("summary").text(),
		Description: markdown(op.get("description").text()),
	}
	var parameters []node
	for _, list := range []node{item.get("parameters"), op.get("parameters")} {
		for ref := range list.items() {
			p := d.resolve(ref)
			parameters = append(parameters, p)
			o.Parameters = append(o.Parameters, field{
				Name: p.get("name").text(), In: p.get("in").text(), Required: p.get("required").text() == "true",
				Type: d.typeOf(p.get("schema")), Description: markdown(p.get("description").text()),
			})
		}
	}
	body := d.resolve(op.get("requestBody")).get("content").get("application/json")
	o.Body = d.fields("", d.resolve(body.get("schema")))
	for name, example := range body.get("examples").members() {
		o.Examples = append(o.Examples, curl(method, path, parameters, name, example.get("value")))
	}
	for status, ref := range op.get("responses").members() {
		o.Responses = append(o.Responses, d.response(status, d.resolve(ref)))
	}
	return o
}

func (d *document) response(status string, n node) response {
	r := response{Status: status, OK: status[0] == '2', Description: markdown(n.get("description").text())}
	for media, content := range n.get("content").members() {
		if r.Content != "" {
			r.Content += ", "
		}
		s := content.get("schema")
		if name := s.refName(); name != "" {
			r.Content += link(name)
			continue
		}
		r.Content += template.HTML(template.HTMLEscapeString(media))
	}
	for name := range n.get("headers").members() {
		r.Headers = append(r.Headers, name)
	}
	return r
}

// curl returns a command that sends the example with the name.
func curl(method, path string, parameters []node, name string, example node) string {
	headers := &strings.Builder{}
	for _, p := range parameters {
		value := exampleOf(p, name)
		switch p.get("in").text() {
		case "path":
			path = strings.ReplaceAll(path, "{"+p.get("name").text()+"}", value)
		case "header":
			if p.get("required").text() == "true" {
				fmt.Fprintf(headers, "  -H '%s: %s' \\\n", p.get("name").text(), value)
			}
		}
	}
	return fmt.Sprintf("curl -X %s http://127.0.0.1:8080%s \\\n  -H 'Content-Type: application/json' \\\n%s  -d '%s'",
		method, path, headers, example.json())
}

// exampleOf returns the parameter's example with the name, else its first one.
func exampleOf(parameter node, name string) string {
	first := ""
	for n, example := range parameter.get("examples").members() {
		value := example.get("value").text()
		if n == name {
			return value
		}
		if first == "" {
			first = value
		}
	}
	return first
}

// fields returns the members of an object schema, those of objects within it
// too. Objects that are references are linked instead.
func (d *document) fields(prefix string, s node) []field {
	required := map[string]bool{}
	for r := range s.get("required").items() {
		required[r.text()] = true
	}
	var fields []field
	for name, p := range s.get("properties").members() {
		description := p.get("description").text()
		if description == "" && p.refName() != "" {
			description = firstParagraph(d.resolve(p).get("description").text())
		}
		fields = append(fields, field{
			Name: prefix + name, Required: required[name],
			Type: d.typeOf(p), Description: markdown(description),
		})
		if p.refName() == "" {
			fields = append(fields, d.fields(prefix+name+".", p)...)
		}
	}
	return fields
}

// resolve follows a reference within the description.
func (d *document) resolve(n node) node {
	ref := n.get("$ref").text()
	if ref == "" {
		return n
	}
	target := d.root
	for part := range strings.SplitSeq(strings.TrimPrefix(ref, "#/"), "/") {
		target = target.get(part)
	}
	if target.missing() && d.err == nil {
		d.err = fmt.Errorf("line %d: %s leads nowhere", n.yaml.Line, ref)
	}
	return target
}
