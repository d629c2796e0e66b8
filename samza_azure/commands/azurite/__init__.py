"""The storage emulator on this machine: installed, started, stopped."""
