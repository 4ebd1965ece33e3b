"""Where data comes from: graphs of datasets, histories of transforms, origins of single records."""
