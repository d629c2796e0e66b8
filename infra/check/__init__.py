"""Checks everything in infra/ without Azure: `python -m infra.check`, part of `make check`.

Promised: templates that parse, whose names are declared and used, whose modules are given what they want; resources
whose properties exist, are writable, have the right type and one of the allowed values, where Bicep's type data is at
hand; the rules of `rules`; manifests that the schemas of Kubernetes accept; a unit that systemd accepts; a Dockerfile
that hadolint accepts.
Not promised: that Azure accepts it. Only `az deployment group what-if` can say that.
"""
