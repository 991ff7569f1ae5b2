package apidoc

import (
	"html/template"
	"strings"
)

// markdown renders what the descriptions in api.yaml use of Markdown:
// paragraphs, `code`, **strong** and tables. A row of a table whose first cell
// is code gets that code as its id, so that a problem document can point at it.
func markdown(text string) template.HTML {
	var b strings.Builder
	for block := range strings.SplitSeq(strings.TrimSpace(text), "\n\n") {
		block = strings.TrimSpace(block)
		switch {
		case block == "":
		case strings.HasPrefix(block, "|"):
			table(&b, strings.Split(block, "\n"))
		default:
			b.WriteString("<p>" + inline(block) + "</p>")
		}
	}
	return template.HTML(b.String())
}

func firstParagraph(text string) string {
	first, _, _ := strings.Cut(text, "\n\n")
	return first
}

func table(b *strings.Builder, rows []string) {
	b.WriteString("<table>")
	for i, row := range rows {
		cells := strings.Split(strings.Trim(strings.TrimSpace(row), "|"), "|")
		tag := "td"
		switch {
		case i == 0:
			tag = "th"
		case strings.HasPrefix(strings.TrimSpace(cells[0]), "---"):
			continue
		}
		b.WriteString("<tr" + rowID(cells[0]) + ">")
		for _, c := range cells {
			b.WriteString("<" + tag + ">" + inline(strings.TrimSpace(c)) + "</" + tag + ">")
		}
		b.WriteString("</tr>")
	}
	b.WriteString("</table>")
}

func rowID(cell string) string {
	cell = strings.TrimSpace(cell)
	if len(cell) < 3 || cell[0] != '`' || cell[len(cell)-1] != '`' {
		return ""
	}
	return ` id="` + template.HTMLEscapeString(strings.Trim(cell, "`")) + `"`
}

// inline renders code and strong. Between backquotes nothing else counts.
func inline(text string) string {
	var b strings.Builder
	for i, part := range strings.Split(text, "`") {
		part = template.HTMLEscapeString(part)
		if i%2 == 1 {
			b.WriteString("<code>" + part + "</code>")
			continue
		}
		for j, s := range strings.Split(part, "**") {
			if j%2 == 1 {
				s = "<strong>" + s + "</strong>"
			}
			b.WriteString(s)
		}
	}
	return b.String()
}
