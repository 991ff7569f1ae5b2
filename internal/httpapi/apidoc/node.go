package apidoc

import (
	"iter"
	"strings"

	"github.com/pb33f/go-yaml"
)

// node is a YAML node that may be absent; asking an absent node for something
// gives nothing.
type node struct{ yaml *yaml.Node }

func (n node) missing() bool { return n.yaml == nil }

// get returns the member of a mapping.
func (n node) get(name string) node {
	for k, v := range n.members() {
		if k == name {
			return v
		}
	}
	return node{}
}

// text returns a scalar, "" for anything else.
func (n node) text() string {
	if n.missing() || n.yaml.Kind != yaml.ScalarNode {
		return ""
	}
	return n.yaml.Value
}

// members walks a mapping in the order of the file.
func (n node) members() iter.Seq2[string, node] {
	return func(yield func(string, node) bool) {
		if n.missing() || n.yaml.Kind != yaml.MappingNode {
			return
		}
		for i := 0; i+1 < len(n.yaml.Content); i += 2 {
			if !yield(n.yaml.Content[i].Value, node{n.yaml.Content[i+1]}) {
				return
			}
		}
	}
}

// items walks a sequence.
func (n node) items() iter.Seq[node] {
	return func(yield func(node) bool) {
		if n.missing() || n.yaml.Kind != yaml.SequenceNode {
			return
		}
		for _, c := range n.yaml.Content {
			if !yield(node{c}) {
				return
			}
		}
	}
}

func (n node) first() node {
	for i := range n.items() {
		return i
	}
	return node{}
}

// refName returns the last part of a reference, "" when n is none.
func (n node) refName() string {
	ref := n.get("$ref").text()
	return ref[strings.LastIndexByte(ref, '/')+1:]
}

// json returns the value as compact JSON; strings of examples need no escapes.
func (n node) json() string {
	var parts []string
	switch {
	case n.missing():
		return ""
	case n.yaml.Kind == yaml.MappingNode:
		for k, v := range n.members() {
			parts = append(parts, `"`+k+`": `+v.json())
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case n.yaml.Kind == yaml.SequenceNode:
		for v := range n.items() {
			parts = append(parts, v.json())
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case n.yaml.Tag == "!!str":
		return `"` + n.yaml.Value + `"`
	}
	return n.yaml.Value
}
