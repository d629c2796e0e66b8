"""What a fleet on Azure is made of: templates, manifests, a unit, an image; and their checker in `check`."""
