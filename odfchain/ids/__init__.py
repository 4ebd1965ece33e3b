"""Identity: multicodec, multibase, multihash, DIDs, names and references. Ids are types, validated once."""
