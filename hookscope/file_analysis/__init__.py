"""Questions to files: differences, similarity, probes, top inputs, findings."""
