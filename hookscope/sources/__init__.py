"""Where models come from: one file a source, each imported only when its source is named."""
