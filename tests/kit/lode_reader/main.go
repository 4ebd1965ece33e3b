// What Lode's own library says of a store: its latest snapshot, all of them, and what Read gives of the latest.
package main

import (
	"context"
	"encoding/json"
	"os"

	"github.com/pithecene-io/lode/lode"
)

func main() {
	ctx, store, id := context.Background(), lode.NewFSFactory(os.Args[1]), lode.DatasetID(os.Args[2])
	said := map[string]any{}
	runways := lode.ParquetField{Name: "runways", Type: lode.ParquetInt64, Nullable: true}
	parquet, err := lode.NewParquetCodec(lode.ParquetSchema{Fields: []lode.ParquetField{runways}})
	must(err)
	reader, err := lode.NewDatasetReader(store)
	must(err)
	found, err := reader.ListManifests(ctx, id, "", lode.ManifestListOptions{}) // validates each of them
	must(err)
	said["manifests"] = found
	for name, codec := range map[string]lode.Codec{"parquet": parquet, "jsonl": lode.NewJSONLCodec(), "none": nil} {
		options := []lode.Option{}
		if codec != nil {
			options = append(options, lode.WithCodec(codec))
		}
		dataset, err := lode.NewDataset(id, store, options...)
		must(err)
		latest, err := dataset.Latest(ctx)
		must(err)
		said["latest"] = latest
		rows, err := dataset.Read(ctx, latest.ID)
		if err != nil {
			rows = []any{err.Error()}
		}
		said[name] = rows
	}
	if len(os.Args) > 3 { // a snapshot of Lode's own on top of what is there
		dataset, err := lode.NewDataset(id, store, lode.WithCodec(lode.NewJSONLCodec()))
		must(err)
		written, err := dataset.Write(ctx, []any{map[string]any{"city": os.Args[3]}}, nil)
		must(err)
		said["written"] = written
	}
	must(json.NewEncoder(os.Stdout).Encode(said))
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
