package apidoc

import (
	"fmt"
	"html/template"
	"strings"
)

// typeOf says in a few words what a schema accepts.
func (d *document) typeOf(s node) template.HTML {
	if s.missing() {
		return ""
	}
	if name := s.refName(); name != "" {
		target := d.resolve(s)
		if target.get("type").text() == "object" || !target.get("enum").missing() {
			return link(name)
		}
		return link(name) + " " + d.plainType(target)
	}
	return d.plainType(s)
}

func (d *document) plainType(s node) template.HTML {
	var words []string
	name := s.get("type").text()
	for t := range s.get("type").items() {
		name = strings.TrimPrefix(name+" or "+t.text(), " or ")
	}
	if name == "array" {
		return "array of " + d.typeOf(s.get("items"))
	}
	if format := s.get("format").text(); format != "" {
		name += " (" + format + ")"
	}
	if name != "" {
		words = append(words, name)
	}
	if c := s.get("const"); !c.missing() {
		words = append(words, code(c.json()))
	}
	if e := s.get("enum"); !e.missing() {
		var values []string
		for v := range e.items() {
			values = append(values, code(v.json()))
		}
		words = append(words, strings.Join(values, " | "))
	}
	words = append(words, bounds(s)...)
	if v := s.get("default"); !v.missing() {
		words = append(words, "default "+code(v.json()))
	}
	return template.HTML(strings.Join(words, ", "))
}

// bounds says which values and lengths a schema accepts.
func bounds(s node) []string {
	var words []string
	if low, high := s.get("minimum").text(), s.get("maximum").text(); low != "" || high != "" {
		switch {
		case high == "":
			words = append(words, "≥ "+power(low))
		case low == "":
			words = append(words, "≤ "+power(high))
		default:
			words = append(words, power(low)+" … "+power(high))
		}
	}
	if low, high := s.get("minLength").text(), s.get("maxLength").text(); high != "" {
		if low == "" {
			low = "0"
		}
		words = append(words, fmt.Sprintf("%s … %s characters", low, high))
	}
	if p := s.get("pattern").text(); p != "" {
		words = append(words, code(p))
	}
	return words
}

// power writes the two limits that nobody recognises in digits as powers.
func power(n string) string {
	switch n {
	case "9007199254740991":
		return "2^53-1"
	case "-9007199254740991":
		return "-(2^53-1)"
	case "-4503599627370496":
		return "-2^52"
	}
	return n
}

func code(s string) string {
	return "<code>" + template.HTMLEscapeString(s) + "</code>"
}

func link(schema string) template.HTML {
	name := template.HTMLEscapeString(schema)
	return template.HTML(`<a href="#schema-` + name + `">` + name + `</a>`)
}
