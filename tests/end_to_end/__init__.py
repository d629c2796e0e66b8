"""Real processes on a real emulator. A package, so that its modules can share `real_processes`."""
