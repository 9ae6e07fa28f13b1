"""What a node offers to other programs: lines of JSON, a local socket, metrics and health, a live feed."""
