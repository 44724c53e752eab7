"""Results as text and as JSON documents: tables, trees, sentences. No view sees a model."""
