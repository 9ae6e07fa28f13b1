"""What a node keeps on disk: its journal."""
