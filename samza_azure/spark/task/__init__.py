"""The life of a task: its query, its batches and its checkpoint; and what the container does for all of them."""
