"""One runnable script for each number that the README claims; each prints one JSON object as its last line."""
