"""A processor's life: observe, decide, perform, and the child process that runs its tasks."""
