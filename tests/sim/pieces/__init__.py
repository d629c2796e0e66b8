"""What the fleet is made of, each piece by itself. Begin with `examine`."""
