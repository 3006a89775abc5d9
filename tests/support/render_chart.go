// Renders a chart whose templates use only what Go's text/template has: standard input is {"files": {NAME: TEXT}, "data": ANY},
// standard output {NAME: RENDERED}.
package main

import (
	"encoding/json"
	"log"
	"os"
	"strings"
	"text/template"
)

func main() {
	var given struct {
		Files map[string]string
		Data  any
	}
	if err := json.NewDecoder(os.Stdin).Decode(&given); err != nil {
		log.Fatal(err)
	}
	rendered := map[string]string{}
	for name, text := range given.Files {
		parsed, err := template.New(name).Option("missingkey=error").Parse(text)
		if err != nil {
			log.Fatal(err)
		}
		var out strings.Builder
		if err := parsed.Execute(&out, given.Data); err != nil {
			log.Fatal(err)
		}
		rendered[name] = out.String()
	}
	if err := json.NewEncoder(os.Stdout).Encode(rendered); err != nil {
		log.Fatal(err)
	}
}
