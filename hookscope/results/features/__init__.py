"""Folders of features, as ``hookscope extract`` writes them: read, verified, exported."""
