"""What whoever may write blobs and rows can write."""
